"""The road of a job whose nodes are Slurm's."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.local.errors import MissingPart
from deploy.slurm.cluster import SlurmCluster
from shared.processes.ending import until
from tests.chaos.scale import Scale, scale
from tests.e2e.clusters import Events, kill_all_of, run_through, with_pools
from tests.integration.slurm import blocked
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(scale() is Scale.CHANGE, reason="three minutes of processor time: at night"),
]

POOLS = """
[pools.cluster]
capacity_type = "spot"
device = "cpu"
nodes = 4
price_per_device_hour = 0.10
backend = "slurm"

[pools.cluster.slurm]
folder = "{folder}/nodes"
conf = "{conf}"
partition = "spot"
flags = ["--exclusive"]
fenced_after_seconds = 20
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    try:
        cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), grace_seconds=30)
    except MissingPart as missing:
        pytest.skip(str(missing))
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
async def pools(platform, slurm, tmp_path_factory) -> AsyncIterator[None]:
    folder: Path = tmp_path_factory.mktemp("shared")
    async with with_pools(platform, POOLS.format(folder=folder, conf=slurm.conf)):
        yield


async def test_a_gang_of_two_outlives_outages_and_losses_of_slurm(platform, slurm, pools):
    @asynccontextmanager
    async def outage(attempt: str) -> AsyncIterator[None]:
        """Of a controller that has saved the job: one that has not forgets it."""
        saved = slurm.conf.parent / "state/job_state"
        assert await until(lambda: attempt.encode() in saved.read_bytes(), PATIENCE_SECONDS)
        slurm.kill("slurmctld")
        yield
        slurm.start_controller()

    @asynccontextmanager
    async def loss(attempt: str) -> AsyncIterator[str]:
        names = slurm.run("squeue", "--noheader", f"--name={attempt}", "--format=%N").strip()
        machine = slurm.run("scontrol", "show", "hostnames", names).split()[1]
        slurm.kill(machine)
        kill_all_of(f"{attempt}-n1")
        yield machine
        slurm.start_node(machine)

    @asynccontextmanager
    async def taken_back(_: str) -> AsyncIterator[None]:
        with blocked(slurm, nodes=3, partition="ondemand"):
            yield

    await run_through(platform, suffix="slurm", cluster=Events(outage, taken_back, loss))
