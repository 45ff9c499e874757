"""How long a job will take and what it will cost, by those that have ended: estimated before it begins."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from schemas.artifacts import DatasetCounts, DatasetFiles
from schemas.base import DatasetRef
from schemas.cost import CostAccrued
from schemas.dataset import DatasetReady
from schemas.job import JobQueued, JobScheduled, JobSubmitted, SubmitJob
from schemas.training import StepsRecorded
from shared.clock import utc_now
from tests.builders import NOON, a_sha
from tests.integration.gateway.pages import csrf_in, logged_in, words_of
from tests.integration.gateway.test_memory import a_pool, base
from tests.integration.gateway.world import World, a_step
from tests.waiting import until

__all__ = ["base"]

pytestmark = pytest.mark.stack

TOKENS = 1_000
STEPS = 5
STEP_SECONDS = 2.0
OTHER_SECONDS = 15.0
ALL_SECONDS = STEPS * STEP_SECONDS + OTHER_SECONDS


class Platform:
    """What the other services say of jobs of one tenant in one pool, for a dollar an hour."""

    def __init__(self, world: World, base_name: str, pool: str) -> None:
        self.world = world
        self.base_name = base_name
        self.pool = pool

    def body(self, file_id: str) -> dict[str, Any]:
        ours = {"resources": {"pool": self.pool}, "recipe": {"num_epochs": 3, "batch_size": 2}}
        return {"model": self.base_name, "training_file": file_id, "retune": ours}

    async def submit(self, file_id: str) -> Any:
        answer = await self.world.ask("POST", "/fine_tuning/jobs", json=self.body(file_id))
        assert answer.status_code == 200, answer.text
        return answer.json()["retune"] | {"id": answer.json()["id"]}

    async def shown(self, job_id: str) -> Any:
        return (await self.world.ask("GET", f"/fine_tuning/jobs/{job_id}")).json()["retune"]

    async def validate(self, job: Any) -> None:
        command = (await self.world.heard(job["dataset_id"], "SubmitDataset")).message
        fact = DatasetReady(
            dataset_id=job["dataset_id"],
            tenant="demo",
            dataset_version=a_sha(job["dataset_id"]),
            manifest_sha256=a_sha("manifest"),
            base_sha=command.spec.base_sha,
            template_sha256=a_sha("template"),
            counts=DatasetCounts(rows=10, windows=4, tokens=TOKENS, loss_tokens=TOKENS),
            benchmarks={},
            suites={},
            files=DatasetFiles(training=command.spec.training_file.sha256),
        )
        await self.world.voices.say("ingest", fact)
        await until(lambda: self.world.is_consumed("dataset.events", job["dataset_id"], 1), "the dataset")

    async def schedule(self, job: Any, *, pool: str = "") -> None:
        submit: SubmitJob = (await self.world.heard(job["id"], "SubmitJob")).message
        of_job = {"job_id": job["id"], "tenant": "demo"}
        dataset = DatasetRef(version=a_sha(job["dataset_id"]), manifest_sha256=a_sha("manifest"))
        queued = JobQueued(
            **of_job, dataset=dataset, config_hash=a_sha("config"), num_steps=STEPS, waiting_for="capacity"
        )
        scheduled = JobScheduled(
            **of_job,
            attempt=1,
            spec=submit.spec,
            base_sha=submit.spec.base_sha,
            dataset=dataset,
            config_hash=a_sha("config"),
            resume=None,
            pool=pool or self.pool,
            capacity_type="spot",
            nodes=1,
            devices_per_node=1,
            grace_seconds=30.0,
            start_deadline=utc_now(),
        )
        submitted = JobSubmitted(
            **of_job, dataset_id=job["dataset_id"], spec=submit.spec, submitted_at=utc_now()
        )
        await self.world.voices.say("scheduler", submitted, queued, scheduled)
        await self.world.provision(job["id"])
        await until(lambda: self.world.is_consumed("job.events", job["id"], 3), "the job")

    async def train(self, job: Any, *, first_step: int = 1, **ending: Any) -> None:
        """In five steps of two seconds, or the last of them, and fifteen seconds beside them."""
        of_job = {"job_id": job["id"], "tenant": "demo", "attempt": 1}
        steps = [
            a_step(number).model_copy(
                update={
                    "time": NOON + timedelta(seconds=STEP_SECONDS * number),
                    "num_tokens": 3 * TOKENS // STEPS,
                }
            )
            for number in range(first_step, STEPS + 1)
        ]
        await self.world.record(StepsRecorded(**of_job, steps=steps))
        recorded = "SELECT count(*) = $2 FROM step WHERE job_id = $1"
        await until(lambda: self.world.db.fetchval(recorded, job["id"], len(steps)), "the steps")
        cost = {"node_seconds": ALL_SECONDS, "device_seconds": ALL_SECONDS, "cost": "0.007", "total": "0.007"}
        accrued = CostAccrued(
            **of_job, **cost, pool=self.pool, capacity_type="spot", until=utc_now(), **ending
        )
        await self.world.voices.say("tracker", accrued)
        await until(lambda: self.world.is_consumed("cost.events", job["id"], 1), "the cost")


@pytest.fixture
async def platform(world: World, base: Any) -> Any:
    async with a_pool(world) as pool:
        yield Platform(world, base.name, pool)


async def test_is_estimated_from_jobs_that_have_ended(world: World, platform: Platform):
    file_id = (await world.upload())["id"]
    first = await platform.submit(file_id)
    assert first["estimated_times"] == [], "nothing has ended in this pool"
    await platform.validate(first)
    await platform.schedule(first)
    await platform.train(first)
    second = await platform.submit(file_id)
    (estimated,) = second["estimated_times"]
    assert estimated["seconds"]["expected"] == pytest.approx(ALL_SECONDS)
    assert estimated["cost_usd"]["expected"] == "0.0069"
    assert (estimated["pool"], estimated["alike"], estimated["error"]) == (platform.pool, "recipe", None)
    await platform.validate(second)
    await platform.schedule(second)
    assert (await platform.shown(second["id"]))["estimated_times"] == [estimated]
    await platform.train(second)
    kept = "SELECT estimated_seconds FROM attempt_time WHERE pool = $1 ORDER BY ended_at"
    assert [row[0] for row in await world.db.fetch(kept, platform.pool)] == [None, pytest.approx(ALL_SECONDS)]


async def test_of_a_file_that_is_not_validated_is_estimated_by_its_size(world: World, platform: Platform):
    first = await platform.submit((await world.upload())["id"])
    await platform.validate(first)
    await platform.schedule(first)
    await platform.train(first)
    rows = b'{"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]}\n' * 3
    other = await platform.submit((await world.upload(content=rows))["id"])
    (estimated,) = other["estimated_times"]
    assert estimated["seconds"]["expected"] == pytest.approx(OTHER_SECONDS + 3 * STEPS * STEP_SECONDS)


async def test_what_was_estimated_for_a_whole_job_is_not_compared_with_a_part(
    world: World, platform: Platform
):
    """A job that continues where another one left off is estimated as a whole."""
    file_id = (await world.upload())["id"]
    for first_step in (1, 3):
        job = await platform.submit(file_id)
        await platform.validate(job)
        await platform.schedule(job)
        await platform.train(job, first_step=first_step)
    assert job["estimated_times"]
    kept = "SELECT estimated_seconds FROM attempt_time WHERE pool = $1"
    assert [row[0] for row in await world.db.fetch(kept, platform.pool)] == [None, None]


async def test_a_job_in_a_pool_in_which_nothing_has_ended_has_none(world: World, platform: Platform):
    file_id = (await world.upload())["id"]
    first = await platform.submit(file_id)
    await platform.validate(first)
    await platform.schedule(first)
    await platform.train(first)
    second = await platform.submit(file_id)
    assert [each["pool"] for each in second["estimated_times"]] == [platform.pool]
    await platform.validate(second)
    async with a_pool(world) as other:
        await platform.schedule(second, pool=other)
        assert (await platform.shown(second["id"]))["estimated_times"] == []


async def test_an_attempt_that_failed_counts_for_nothing(world: World, platform: Platform):
    file_id = (await world.upload())["id"]
    job = await platform.submit(file_id)
    await platform.validate(job)
    await platform.schedule(job)
    await platform.train(job, failure_class="preempted", charged="0")
    assert (await platform.submit(file_id))["estimated_times"] == []


async def test_the_page_shows_it_before_the_button(world: World, platform: Platform):
    file_id = (await world.upload())["id"]
    job = await platform.submit(file_id)
    await platform.validate(job)
    await platform.schedule(job)
    async with logged_in(world) as person:
        form = {
            "csrf": csrf_in((await person.get("/jobs/new")).text),
            "training_file": file_id,
            "model": platform.base_name,
            "retune-resources-pool": platform.pool,
        }
        words = words_of(await person.post("/jobs/new/check", data=form))
        assert "time and cost not estimated: no job has ended in a pool that suits this one" in words
        await platform.train(job)
        words = words_of(await person.post("/jobs/new/check", data=form))
        assert f"22-29 s in pool {platform.pool}, under $0.01" in words
        assert "by 1 attempt with the same base model, method and number of devices" in words
        of_sweep = {"base": platform.base_name, "training_file": file_id, "validation_file": file_id}
        words = words_of(await person.get("/sweeps/new", params=of_sweep))
        assert f"a trial 22-29 s in pool {platform.pool}, under $0.01" in words
        assert "; 20 trials at most $0.16" in words
        waiting = await platform.submit(file_id)
        assert f"it will need 22-29 s in pool {platform.pool}" in words_of(
            await person.get(f"/jobs/{waiting['id']}")
        )


async def test_a_dataset_says_what_a_job_on_it_needs_and_costs(world: World, base: Any):
    async with a_pool(world, price_per_hour=Decimal(36)) as pool, logged_in(world) as person:
        platform = Platform(world, base.name, pool)
        job = await platform.submit((await world.upload())["id"])
        await platform.validate(job)
        path = f"/datasets/{job['dataset_id']}"
        assert "time and cost not estimated: no job has ended in a pool" in words_of(await person.get(path))
        await platform.schedule(job)
        await platform.train(job)
        assert (
            f"time and cost 22-29 s in pool {pool}, $0.22-0.29, by 1 attempt with the same base model"
            in words_of(await person.get(path))
        )
