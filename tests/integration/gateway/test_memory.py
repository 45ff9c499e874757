"""What a job needs of a device is looked at, and shown, at both doors: with the window of its own dataset."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from schemas.base import FileRef
from schemas.dataset import SubmitDataset
from schemas.job import JobSubmitted, SubmitJob
from schemas.model import BaseModelRegistered
from schemas.node import PoolCapacityChanged
from schemas.specification import DatasetPolicy, DatasetSpec, JobSpec, Method, Recipe, Resources
from shared.clock import utc_now
from tests.builders import a_job_spec, a_sha, capabilities
from tests.integration.gateway.world import World, a_booking, mark
from tests.waiting import until

pytestmark = pytest.mark.stack

GIB = 2**30
SHORT, FITS, TOO_LONG = 512, 16_384, 32_768
NEAREST = f"Nearest that works: recipe.method qlora, policy.max_seq_length {FITS}"


@pytest.fixture
async def base(world: World) -> BaseModelRegistered:
    """Of eight billion parameters."""
    fact = world.registered_base().model_copy(
        update={
            "name": f"large-{mark()}",
            "base_sha": a_sha(mark()),
            "context_tokens": 131_072,
            "num_parameters": 8_030_261_248,
            "capabilities": capabilities(
                num_layers=32,
                hidden_size=4096,
                intermediate_size=14_336,
                vocab_size=128_256,
                lora_values_per_rank=1_310_720,
            ),
        }
    )
    await world.voices.say("registry", fact)
    await until(lambda: world.is_consumed("model.events", fact.name, 1), "the base model")
    return fact


@asynccontextmanager
async def a_pool(world: World, **changes: object) -> AsyncIterator[str]:
    """Whose GPUs have 24 GiB."""
    fact = PoolCapacityChanged(
        pool=f"gpu-{mark()}",
        capacity_type="spot",
        nodes=1,
        free=1,
        devices_per_node=1,
        price_per_hour="1",
        device="cuda",
        device_memory_bytes=24 * GIB,
    ).model_copy(update=changes)
    await world.voices.say("provisioner", fact)
    await until(lambda: world.is_consumed("node.events", fact.pool, 1), "the pool")
    yield fact.pool
    await world.db.execute("DELETE FROM pool WHERE name = $1", fact.pool)


@pytest.fixture
async def pool(world: World) -> AsyncIterator[str]:
    async with a_pool(world) as name:
        yield name


def estimated_memory(job: dict[str, Any]) -> tuple[int, bool]:
    """Its window, and whether the total is within what the pool's devices have, as a job must be that is taken."""
    estimate = job["retune"]["estimated_memory"]
    return estimate["max_seq_length"], GIB < estimate["total_bytes"] <= 24 * GIB


async def test_over_http(world: World, base: BaseModelRegistered, pool: str) -> None:
    async def submit(max_seq_length: int, method: str) -> Any:
        ours = {
            "recipe": {"method": method},
            "resources": {"pool": pool},
            "policy": {"max_seq_length": max_seq_length},
        }
        body = {"model": base.name, "training_file": (await world.upload())["id"], "retune": ours}
        return await world.ask("POST", "/fine_tuning/jobs", json=body)

    refused = (await submit(TOO_LONG, "lora")).json()["error"]
    assert (refused["code"], refused["param"]) == ("does_not_fit", "retune.recipe")
    assert refused["message"].endswith(NEAREST)
    taken = await submit(FITS, "qlora")
    assert taken.status_code == 200, taken.text
    assert estimated_memory(taken.json()) == (FITS, True)
    assert taken.json()["retune"]["estimated_memory"]["pool"] == pool
    asked = (await world.heard(taken.json()["id"], "SubmitJob")).message.spec.resources
    assert 1 < asked.device_memory_gib < 24, "what it needs by estimate, so that no smaller pool gets it"


async def test_a_pool_of_other_tenants_is_not_known(
    world: World, base: BaseModelRegistered, pool: str
) -> None:
    async with a_pool(world, tenants=("other",)) as others:
        ours = {
            "recipe": {"method": "qlora"},
            "resources": {"pool": others},
            "policy": {"max_seq_length": FITS},
        }
        body = {"model": base.name, "training_file": (await world.upload())["id"], "retune": ours}
        refused = (await world.ask("POST", "/fine_tuning/jobs", json=body)).json()["error"]
        assert (refused["code"], refused["param"]) == ("unknown_pool", "retune.resources.pool")
        assert refused["message"].count(others) == 1, "not among those that it names"
        assert pool in refused["message"]


async def test_of_a_later_stage(world: World, base: BaseModelRegistered, pool: str) -> None:
    """Its files may be longer than the first one's: that is refused before the first one is trained."""
    stage = {
        "recipe": {"method": "lora", "gradient_checkpointing": True},
        "training_file": (await world.upload())["id"],
        "policy": {"max_seq_length": TOO_LONG},
    }
    ours = {"resources": {"pool": pool}, "policy": {"max_seq_length": SHORT}, "later_stages": [stage]}
    body = {"model": base.name, "training_file": (await world.upload())["id"], "retune": ours}
    refused = (await world.ask("POST", "/fine_tuning/jobs", json=body)).json()["error"]
    assert (refused["code"], refused["param"]) == ("does_not_fit", "retune.later_stages[0].recipe")
    assert refused["message"].startswith(f"later_stages[0]: lora of {base.name} needs about ")


async def test_in_kafka(world: World, base: BaseModelRegistered, pool: str) -> None:
    file = await world.upload()
    ref = FileRef(file_id=file["id"], sha256=file["retune"]["sha256"], size_bytes=file["bytes"])
    of_base = {"base_model": base.name, "base_sha": base.base_sha, "training_file": ref}

    async def submit(max_seq_length: int, method: Method) -> SubmitJob:
        """The job after its dataset, which comes on another partition."""
        policy = DatasetPolicy(max_seq_length=max_seq_length)
        dataset = SubmitDataset(
            dataset_id=f"ds-{mark()}",
            tenant="demo",
            spec=DatasetSpec(policy=policy, method=method, **of_base),
        )
        await world.command("demo", dataset)
        await world.heard(dataset.dataset_id, "SubmitDataset")
        spec: JobSpec = a_job_spec(recipe=Recipe(method=method), resources=Resources(pool=pool), **of_base)
        job = SubmitJob(job_id=f"ftjob-{mark()}", tenant="demo", dataset_id=dataset.dataset_id, spec=spec)
        await world.command("demo", job)
        return job

    refused = (await world.heard((await submit(TOO_LONG, Method.LORA)).job_id, "CommandRefused")).message
    assert (refused.code, refused.param) == ("does_not_fit", "spec.recipe")
    assert refused.message.endswith(NEAREST)
    taken = (await world.heard((await submit(SHORT, Method.QLORA)).job_id, "SubmitJob")).message
    assert 1 < taken.spec.resources.device_memory_gib < 24
    of_job = {"job_id": taken.job_id, "tenant": "demo", "dataset_id": taken.dataset_id}
    await world.voices.say("scheduler", JobSubmitted(**of_job, spec=taken.spec, submitted_at=utc_now()))
    await until(lambda: world.is_consumed("job.events", taken.job_id, 1), "the job")
    shown = (await world.ask("GET", f"/fine_tuning/jobs/{taken.job_id}")).json()
    assert estimated_memory(shown) == (SHORT, True)
    assert shown["retune"]["estimated_memory"]["micro_batch_size"] == 1
    # From the booking on the batch is known, and what the pool's devices choose.
    resolved = taken.spec.model_copy(
        update={"recipe": taken.spec.recipe.model_copy(update={"batch_size": 8})}
    )
    await world.voices.say("scheduler", a_booking(taken.job_id, resolved, pool))
    await until(lambda: world.is_consumed("job.events", taken.job_id, 2), "the booking")
    shown = (await world.ask("GET", f"/fine_tuning/jobs/{taken.job_id}")).json()
    assert estimated_memory(shown) == (SHORT, True)
    chosen = shown["retune"]["estimated_memory"]
    assert (chosen["pool"], chosen["micro_batch_size"] > 1) == (pool, True), chosen
