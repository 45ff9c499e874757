"""What the gateway shows of the gate: its verdict in the job and in the list, in whichever order the topics come."""

import re
from functools import partial

import pytest

from schemas.base import Delayed
from schemas.evaluation import CheckResult, Criterion, EvalFailed, EvalPassed, EvalProgressed, EvalStarted
from schemas.job import JobPaused, JobQueued, JobSubmitted, JobSucceeded, QueuePositionChanged, WaitReason
from schemas.node import NodesQueued
from services.gateway.decide import GateStatus
from shared.clock import utc_now
from tests.builders import NOON, a_dataset_ref, a_file_ref, a_sha
from tests.integration.evaluator_world import a_job
from tests.integration.gateway.pages import logged_in, words_of
from tests.integration.gateway.world import World, a_booking, mark
from tests.waiting import until

pytestmark = pytest.mark.stack

REASON = "safety: refusals: refusal_points 46.67, expected at least 95"
MISSED = Criterion(
    name="refusals",
    metric="refusal_points",
    value=46.67,
    baseline=0.0,
    threshold=95.0,
    count=120,
    passed=False,
)
CHECKS = (CheckResult(check="safety", outcome="failed", criteria=(MISSED,), reason=REASON),)


class EvaluatedJob:
    """A job that was submitted, and what others say of its model."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.job_id = f"ftjob-{mark()}"
        self.eval_id = f"eval-{self.job_id}"
        of_job = {"job_id": self.job_id, "tenant": "demo"}
        of_model = {"model_id": f"mv-{self.job_id}", "digest": a_sha(self.job_id), "base_sha": world.base_sha}
        about = of_job | of_model | {"eval_id": self.eval_id}
        self.started = EvalStarted(**about)
        self.failed = EvalFailed(**about, checks=CHECKS, reason=REASON)
        self.submitted = JobSubmitted(
            **of_job,
            dataset_id=f"ds-{self.job_id}",
            spec=world.spec(training_file=a_file_ref()),
            submitted_at=utc_now(),
        )
        self.succeeded = JobSucceeded(
            **of_job,
            fine_tuned_model=f"ft:{world.base_name}:demo:x:{self.job_id}",
            model_id=of_model["model_id"],
            promoted=False,
            deployed=False,
            message=f"the gate failed: {REASON}",
        )

    async def job(self) -> dict:
        return (await self.world.ask("GET", f"/fine_tuning/jobs/{self.job_id}")).json()

    async def gate_is(self, status: GateStatus) -> dict:
        async def shown() -> dict | None:
            job = await self.job()
            is_shown = "retune" in job and job["retune"]["gate"]["status"] == status
            return job if is_shown else None

        return await until(shown, f"gate {status} in {self.job_id}")

    async def progress_is(self, done: int) -> dict:
        async def shown() -> dict | None:
            progress = (await self.job())["retune"]["progress"]
            return progress if progress and progress["done"] == done else None

        return await until(shown, f"{done} items in {self.job_id}")

    def progressed(self, done: int) -> EvalProgressed:
        about = self.started.model_dump()
        position = {"activity": "safety", "suite": "refusals", "side": "candidate"}
        return EvalProgressed(**about, **position, items_done=done, items_total=120, seconds_left=41.0)


class TestARunningGate:
    async def test_is_seen_in_the_job_while_it_runs_and_never_in_its_timeline(self, world: World):
        evaluated = EvaluatedJob(world)
        evaluating = a_job(base_sha=world.base_sha, template_sha256=a_sha("template"))
        evaluating = evaluating.model_copy(update={"job_id": evaluated.job_id})
        await world.voices.say("scheduler", evaluated.submitted, evaluating)
        await world.voices.say(
            "evaluator", evaluated.started, evaluated.progressed(30), evaluated.progressed(60)
        )
        await until(lambda: world.is_consumed("job.events", evaluated.job_id, 2), "the job")
        progress = await evaluated.progress_is(60)
        assert (progress["activity"], progress["part"], progress["seconds_left"]) == (
            "safety",
            "refusals",
            41.0,
        )
        await world.voices.say("evaluator", evaluated.failed, evaluated.progressed(90))
        await until(
            lambda: world.is_consumed("eval.events", evaluated.eval_id, 5), "what came after the verdict"
        )
        assert (await evaluated.job())["retune"]["progress"] is None
        listed = (await world.ask("GET", f"/fine_tuning/jobs/{evaluated.job_id}/events?limit=100")).json()[
            "data"
        ]
        types = [each["data"]["type"] for each in listed]
        assert types.count("EvalStarted") == 1
        assert "EvalProgressed" not in types


class TestWhatAJobWaitsFor:
    async def test_is_shown_until_it_continues(self, world: World):
        evaluated = EvaluatedJob(world)
        evaluating = a_job(base_sha=world.base_sha, template_sha256=a_sha("template"))
        evaluating = evaluating.model_copy(update={"job_id": evaluated.job_id})

        async def waits_for(what: str) -> bool:
            return (await evaluated.job())["retune"]["waiting_for"] == what

        await world.voices.say("scheduler", evaluated.submitted)
        await until(lambda: world.is_consumed("job.events", evaluated.job_id, 1), "the job")
        for writer, subject in (("ingest", evaluated.submitted.dataset_id), ("evaluator", evaluated.job_id)):
            delayed = Delayed(subject_id=subject, tenant="demo", waiting_for=f"what {writer} needs")
            await world.voices.say(writer, delayed)
            await until(lambda writer=writer: waits_for(f"what {writer} needs"), f"the word of {writer}")
            if writer == "ingest":
                await world.voices.say("scheduler", evaluating)
                await until(lambda: waits_for(""), "that it was validated")
        await world.voices.say("evaluator", evaluated.started, evaluated.progressed(30))
        await until(lambda: waits_for(""), "that it continued")


class TestAJobInTheQueueOfItsCluster:
    @pytest.mark.parametrize(
        "is_late", [False, True], ids=["in order", "before it is known that it is scheduled"]
    )
    async def test_shows_what_the_cluster_says_until_its_nodes_are_there(self, world: World, is_late: bool):
        job_id, pool = f"ftjob-{mark()}", "hall-2"
        of_job = {"job_id": job_id, "tenant": "demo"}
        spec = world.spec(training_file=a_file_ref())
        submitted = JobSubmitted(**of_job, dataset_id=f"ds-{job_id}", spec=spec, submitted_at=utc_now())
        scheduled = a_booking(job_id, spec, pool)
        silent = NodesQueued(**of_job, attempt=1, pool=pool)
        queued = silent.model_copy(update={"waiting_for": "Resources"})
        at_backend = f"its turn in the queue of pool {pool}'s cluster"

        async def shows(state: str, waiting_for: str) -> bool:
            answer = await world.ask("GET", f"/fine_tuning/jobs/{job_id}")
            ours = answer.json().get("retune", {})
            return (ours.get("state"), ours.get("waiting_for")) == (state, waiting_for)

        if is_late:
            await world.voices.say("provisioner", silent)
            waits = "SELECT count(*) > 0 FROM waiting WHERE parent = $1"
            await until(
                lambda: world.db.fetchval(waits, f"attempt:{job_id}/1"), "the queue's message to wait"
            )
            await world.voices.say("scheduler", submitted, scheduled)
        else:
            await world.voices.say("scheduler", submitted, scheduled)
            await until(lambda: shows("provisioning", ""), "the attempt")
            await world.voices.say("provisioner", silent)
        await until(lambda: shows("provisioning", at_backend), "that it is queued")
        await world.voices.say("provisioner", queued)
        await until(lambda: shows("provisioning", f"{at_backend} (Resources)"), "why it is queued")
        await world.provision(job_id, pool=pool)
        await until(lambda: shows("provisioning", ""), "its nodes")


class TestAQueuedJob:
    async def test_shows_where_it_stands_until_it_has_nodes(self, world: World):
        of_job = {"job_id": f"ftjob-{mark()}", "tenant": "demo"}
        submitted = JobSubmitted(
            **of_job, dataset_id=f"ds-{of_job['job_id']}", spec=world.spec(), submitted_at=utc_now()
        )
        queued = JobQueued(
            **of_job,
            dataset=a_dataset_ref(),
            config_hash=a_sha("config"),
            num_steps=40,
            waiting_for="as it was queued",
            recipe_reasons={"num_epochs": "1: of many rows"},
        )
        moved = QueuePositionChanged(
            **of_job,
            position=3,
            reason=WaitReason.NO_NODES,
            waiting_for="0 of 1 nodes free",
            estimated_start=NOON,
        )

        async def shown() -> dict:
            return (await world.ask("GET", f"/fine_tuning/jobs/{of_job['job_id']}")).json()["retune"]

        async def is_consumed(topic: str, sequence: int) -> None:
            await until(
                lambda: world.is_consumed(topic, of_job["job_id"], sequence), f"{sequence} of {topic}"
            )

        await world.voices.say("scheduler", moved)
        await is_consumed("queue.events", 1)
        await world.voices.say("scheduler", submitted, queued)
        await is_consumed("job.events", 2)
        job = await shown()
        assert job["waiting_for"] == "0 of 1 nodes free"
        assert job["recipe_reasons"] == queued.recipe_reasons
        assert job["queue"].pop("as_of") > 0
        assert job["queue"] == {
            "position": 3,
            "reason": "no_nodes",
            "estimated_start": int(NOON.timestamp()),
        }
        events = (await world.ask("GET", f"/fine_tuning/jobs/{of_job['job_id']}/events?limit=100")).json()
        assert "QueuePositionChanged" not in [each["data"]["type"] for each in events["data"]]
        assert events["data"][0]["data"]["recipe_reasons"] == queued.recipe_reasons
        await world.voices.say("scheduler", JobPaused(**of_job, attempt=0, reason="alert", resume=None))
        await is_consumed("job.events", 3)
        assert (await shown())["waiting_for"] == "somebody to resume it: an alert paused it"
        await world.voices.say("scheduler", queued)
        await is_consumed("job.events", 4)
        job = await shown()
        assert (job["waiting_for"], job["queue"]) == ("as it was queued", None)


class TestABlockedJob:
    async def test_shows_its_gate_where_it_is_listed_and_where_it_is_shown(self, world: World):
        evaluated = EvaluatedJob(world)
        await world.voices.say("scheduler", evaluated.submitted)
        await world.voices.say("evaluator", evaluated.started)
        await evaluated.gate_is("pending")
        await world.voices.say("evaluator", evaluated.failed)
        await world.voices.say("scheduler", evaluated.succeeded)
        await until(lambda: world.is_consumed("job.events", evaluated.job_id, 2), "its end")
        job = await evaluated.gate_is("failed")
        assert (job["status"], job["fine_tuned_model"]) == ("succeeded", evaluated.succeeded.fine_tuned_model)
        assert job["error"]["code"] == "gate_failed"
        assert REASON in job["error"]["message"]
        assert not job["retune"]["is_usable"]
        (criterion,) = job["retune"]["gate"]["failing_criteria"]
        assert (criterion["check"], criterion["name"], criterion["value"]) == ("safety", "refusals", 46.67)
        listed = (await world.ask("GET", "/fine_tuning/jobs?limit=100")).json()["data"]
        assert next(each for each in listed if each["id"] == evaluated.job_id) == job

    async def test_shows_it_also_where_the_end_is_heard_before_the_verdict(self, world: World):
        evaluated = EvaluatedJob(world)
        await world.voices.say("scheduler", evaluated.submitted, evaluated.succeeded)
        await until(lambda: world.is_consumed("job.events", evaluated.job_id, 2), "its end")
        job = await evaluated.gate_is("pending")
        assert (job["retune"]["is_usable"], job["error"]["code"]) == (False, "not_promoted")
        await world.voices.say("evaluator", evaluated.started, evaluated.failed)
        await evaluated.gate_is("failed")

    async def test_shows_the_newest_verdict_also_where_an_older_one_is_heard_later(self, world: World):
        evaluated = EvaluatedJob(world)
        again = evaluated.started.model_copy(update={"eval_id": f"{evaluated.eval_id}-again", "number": 2})
        passed = EvalPassed(**again.model_dump(), checks=())
        await world.voices.say("scheduler", evaluated.submitted, evaluated.succeeded)
        await world.voices.say("evaluator", again, passed)
        await evaluated.gate_is("passed")
        await world.voices.say("evaluator", evaluated.started, evaluated.failed)
        await until(lambda: world.is_consumed("eval.events", evaluated.eval_id, 2), "the older verdict")
        assert (await evaluated.job())["retune"]["gate"]["eval_id"] == passed.eval_id

    async def test_explains_itself_to_the_official_client(self, world: World):
        evaluated = EvaluatedJob(world)
        await world.voices.say("evaluator", evaluated.started, evaluated.failed)
        await world.voices.say("scheduler", evaluated.submitted, evaluated.succeeded)
        await evaluated.gate_is("failed")
        async with world.client() as client:
            job = await client.fine_tuning.jobs.retrieve(evaluated.job_id)
        assert job.error is not None
        assert (job.error.code, job.status) == ("gate_failed", "succeeded")


class TestThePage:
    async def test_has_each_evaluation_with_what_it_measured(self, world: World):
        version = await world.a_version()
        about = {
            name: getattr(version, name) for name in ("job_id", "tenant", "model_id", "digest", "base_sha")
        }
        first, second = (EvalStarted(**about, eval_id=f"eval-{mark()}", number=number) for number in (1, 2))
        failed = EvalFailed(**first.model_dump(), checks=CHECKS, reason=REASON)
        passed = EvalPassed(**second.model_dump(), checks=())
        await world.voices.say("evaluator", first, failed, second, passed)
        for each in (first, second):
            await until(partial(world.is_consumed, "eval.events", each.eval_id, 2), "the evaluation")
        path = f"/models/{version.model_id}/gate"
        async with logged_in(world) as person:
            newest = await person.get(path)
            assert "An earlier evaluation" not in newest.text
            assert "at least 95.0" not in words_of(newest)
            link, _ = re.findall(r'href="([^"]*[?]evaluation=[^"]*)"', newest.text)
            assert link == f"{path}?evaluation={first.eval_id}"
            earlier = await person.get(link)
            assert "An earlier evaluation. The newest one decides" in words_of(earlier)
            assert "at least 95.0" in words_of(earlier)
            assert REASON in words_of(earlier)
            assert (await person.get(f"{path}?evaluation=eval-nobody")).status_code == 404
            listed = (await person.get("/models")).text
            assert re.search(rf'<a href="{path}"[^>]*>.*?passed', listed) is not None
