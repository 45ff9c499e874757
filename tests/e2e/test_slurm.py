"""The road of a job whose nodes are Slurm's: submit, a gang of two, a preemption by Slurm, a resumption, the gate, chat."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.errors import MissingPart
from deploy.slurm.cluster import SlurmCluster
from schemas.job import JobRequeued, JobScheduled
from schemas.node import NodeLost, NodePreempted, NodesQueued, NodesReleased
from schemas.training import TrainingResumed
from tests.chaos.scale import Scale, scale
from tests.e2e import material
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
async def pools(platform, slurm, tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("shared")
    file = platform.stack.state.root / "pools.toml"
    before = file.read_text()
    file.write_text(before + POOLS.format(folder=folder, conf=slurm.conf))
    await platform.stack.stop("provisioner")
    await platform.stack.start("provisioner")
    await platform.stack.wait_healthy("provisioner")
    yield
    file.write_text(before)


async def test_a_gang_of_two_is_preempted_by_slurm_and_continues_exactly(platform, slurm, pools):
    job_id = await platform.submit(
        suffix="slurm", resources={"nodes": 2, "pool": "cluster", "capacity_type": "spot"}
    )
    await platform.until(job_id, lambda job: job["retune"]["last_step"] >= 20, "its twentieth step")
    with blocked(slurm, nodes=3, partition="ondemand"):
        await platform.until(job_id, lambda job: job["retune"]["attempt"] == 2, "the second attempt")
    job = await platform.finished(job_id)
    assert job["status"] == "succeeded", platform.retune("jobs", "events", job_id)
    facts = [event.message for event in await platform.events(job_id)]
    assert {fact.source for fact in facts if isinstance(fact, NodePreempted)} == {"preemption"}
    assert [fact.failure_class for fact in facts if isinstance(fact, JobRequeued)] == ["preempted"]
    assert [fact.certificate.exact for fact in facts if isinstance(fact, TrainingResumed)] == [True]
    released = [[node.host for node in fact.nodes] for fact in facts if isinstance(fact, NodesReleased)]
    assert {fact.attempt for fact in facts if isinstance(fact, NodesQueued)} == {1, 2}
    assert [len(machines) for machines in released] == [2, 2]
    assert [fact for fact in facts if isinstance(fact, NodeLost)] == []
    assert [fact.attempt for fact in facts if isinstance(fact, JobScheduled)] == [1, 2]
    answer = await platform.answer(job["fine_tuned_model"], f"What colour is the {material.THINGS[310]}?")
    assert answer == material.ANSWER
