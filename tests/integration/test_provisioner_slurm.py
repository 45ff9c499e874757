"""The provisioner with a pool of Slurm beside one of this machine: real runners, on real Kafka, Postgres and Slurm."""

import os
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.local.stack import Stack
from deploy.slurm.cluster import SlurmCluster
from schemas.job import StopReason
from schemas.node import (
    NodeLost,
    NodePreempted,
    NodesProvisioned,
    NodesQueued,
    NodesReleased,
    ProvisioningFailed,
)
from schemas.training import TrainingStarted, TrainingStopped
from shared.clock import utc_now
from tests.integration.attempts import Attempts
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.integration.slurm import blocked, running_jobs
from tests.integration.test_provisioner import POOLS, name_of, processes_of, training

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]

SLURM_POOL = """
[pools.cluster]
capacity_type = "spot"
device = "cpu"
nodes = 8
price_per_device_hour = 0.10
backend = "slurm"

[pools.cluster.slurm]
folder = "{folder}/cluster"
conf = "{conf}"
partition = "spot"
flags = ["--exclusive"]
"""


@pytest.fixture(scope="module")
def env(stack: Stack, slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("provisioner")
    pools = POOLS + SLURM_POOL.format(folder=folder, conf=slurm.conf)
    return provisioner_env_of(stack, folder, pools, save_seconds=3.0)


@pytest.fixture(scope="module")
async def attempts(stack: Stack, env: dict[str, str]) -> AsyncIterator[Attempts]:
    async with attempts_on(stack, env) as attempts:
        yield attempts


async def test_a_gang_is_preempted_with_notice_and_its_nodes_are_released(stack, attempts, slurm, env):
    scheduled = await attempts.schedule(pool="cluster", nodes=2)
    beside = await attempts.schedule(pool="test")
    await training(attempts, scheduled)
    await training(attempts, beside)
    await attempts.stop(beside, seconds=20)
    await stack.stop("provisioner")
    await stack.start("provisioner", env=env)
    await stack.wait_healthy("provisioner")
    with blocked(slurm, nodes=len(slurm.nodes), partition="ondemand"):
        preempted = await attempts.until(scheduled.job_id, NodePreempted)
        assert preempted.source == "preemption"
        await attempts.stop(scheduled, seconds=8, reason=StopReason.PREEMPT)
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert stopped.bundle.step == stopped.last_step
        released = await attempts.until(scheduled.job_id, NodesReleased)
    assert sorted(node.host for node in released.nodes) == ["n1", "n2"]
    assert attempts.heard(scheduled.job_id, NodeLost) == []
    assert running_jobs(slurm, name_of(scheduled)) == []
    assert len(attempts.heard(scheduled.job_id, NodesProvisioned)) == 1
    assert len(attempts.heard(scheduled.job_id, NodePreempted)) == 2
    await attempts.until(beside.job_id, NodesReleased)


async def test_a_wait_in_the_queue_is_announced_and_has_no_deadline(attempts, slurm):
    deadline = utc_now() + timedelta(seconds=10)
    with blocked(slurm, nodes=3):
        scheduled = await attempts.schedule(pool="cluster", nodes=2, start_deadline=deadline)
        late = await attempts.schedule(pool="test", start_deadline=deadline)
        await attempts.until(late.job_id, NodesProvisioned)
        for pid in processes_of(late):
            os.kill(pid, signal.SIGSTOP)
        queued = await attempts.until(scheduled.job_id, NodesQueued)
        assert queued.pool == "cluster"
        await attempts.until(late.job_id, NodesReleased)
        assert attempts.story(scheduled.job_id, "node.events") == ["NodesQueued"]
    provisioned = await attempts.until(scheduled.job_id, NodesProvisioned)
    assert provisioned.start_deadline > deadline
    await attempts.until(scheduled.job_id, TrainingStarted)
    await attempts.stop(scheduled, seconds=0)
    await attempts.until(scheduled.job_id, NodesReleased)


async def test_what_no_partition_can_hold_is_no_capacity(attempts, slurm):
    scheduled = await attempts.schedule(pool="cluster", nodes=len(slurm.nodes) + 1)
    failed = await attempts.until(scheduled.job_id, ProvisioningFailed)
    assert (failed.code, failed.message) == ("no_capacity", "Slurm says PartitionNodeLimit")
    assert running_jobs(slurm, name_of(scheduled)) == []
    assert not Path(slurm.conf.parent, name_of(scheduled)).exists()
