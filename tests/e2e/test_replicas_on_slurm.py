"""Real vLLM as a job of a real Slurm: a model is trained, judged and served there, and again after its node went."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deploy.local.errors import MissingPart
from deploy.slurm.cluster import SlurmCluster
from schemas.deployment import ReplicaLost, ReplicaReady
from tests.chaos.scale import at_night
from tests.e2e import material
from tests.e2e.clusters import with_pools
from tests.e2e.conftest import Platform
from tests.e2e.test_slurm import POOLS

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(900),
    at_night("a job, its gate and two starts of vLLM"),
]

ON_NODES = {"SERVING_CONTROLLER_POOL": "cluster", "SERVING_CONTROLLER_ON_NODES": "true"}
QUESTION = f"What colour is the {material.THINGS[310]}?"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    try:
        cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    except MissingPart as missing:
        pytest.skip(str(missing))
    with cluster:
        yield cluster


async def restart_controller(platform: Platform, **env: str) -> None:
    await platform.stack.stop("serving_controller")
    await platform.stack.start("serving_controller", env=env)
    await platform.stack.wait_healthy("serving_controller")


@pytest.fixture(scope="module")
async def on_nodes(platform, slurm, tmp_path_factory) -> AsyncIterator[None]:
    folder: Path = tmp_path_factory.mktemp("shared")
    async with with_pools(platform, POOLS.format(folder=folder, conf=slurm.conf)):
        await restart_controller(platform, **ON_NODES)
        yield
        await restart_controller(platform)


def jobs_of_replicas(slurm: SlurmCluster) -> dict[str, str]:
    """Name of the machine by job id, of the running nodes of leases."""
    lines = slurm.run("squeue", "--noheader", "--states=running", "--format=%i %j %N").splitlines()
    rows = [line.split() for line in lines]
    return {job: host for job, name, host in rows if name.startswith("r-")}


async def until_replicas(slurm: SlurmCluster, *, without: str = "", seconds: float = 240.0) -> dict[str, str]:
    for _ in range(int(seconds)):
        jobs = jobs_of_replicas(slurm)
        if jobs and without not in jobs:
            return jobs
        await asyncio.sleep(1.0)
    raise AssertionError(f"waited {seconds:g} s for the node of a replica but {without}; found {jobs}")


async def test_a_model_is_served_from_a_node_and_from_another_one_after_a_drain(platform, slurm, on_nodes):
    job = await platform.finished(await platform.submit(suffix="nodes"))
    assert job["status"] == "succeeded", platform.retune("jobs", "events", job["id"])
    assert await platform.answer(job["fine_tuned_model"], QUESTION) == material.ANSWER
    [(first, host)] = (await until_replicas(slurm)).items()

    slurm.run("scontrol", "update", f"NodeName={host}", "State=DRAIN", "Reason=test")
    try:
        jobs = await until_replicas(slurm, without=first)
        assert host not in jobs.values()
        answer = await platform.answer(job["fine_tuned_model"], QUESTION)
        assert answer == material.ANSWER
    finally:
        slurm.run("scontrol", "update", f"NodeName={host}", "State=RESUME")
    lost = [event.message for event in await platform.events_of(reason="its node goes away: drain")]
    assert [type(fact) for fact in lost] == [ReplicaLost]
    ready = [event.message for event in await platform.events_of() if isinstance(event.message, ReplicaReady)]
    assert len({fact.replica.incarnation for fact in ready}) >= 2
