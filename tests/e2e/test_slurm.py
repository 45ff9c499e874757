"""The road of a job whose nodes are Slurm's."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deploy.local.errors import MissingPart
from deploy.slurm.cluster import SlurmCluster
from tests.chaos.scale import Scale, scale
from tests.e2e.clusters import run_through, with_pools
from tests.integration.slurm import blocked

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(900),
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


async def test_a_gang_of_two_is_preempted_by_slurm_and_continues_exactly(platform, slurm, pools):
    await run_through(platform, suffix="slurm", taken_back=blocked(slurm, nodes=3, partition="ondemand"))
