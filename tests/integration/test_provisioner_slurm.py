"""The provisioner with a pool of Slurm beside one of this machine: real runners, on real Kafka, Postgres and Slurm."""

import os
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from deploy.local.stack import Stack
from deploy.slurm.cluster import SlurmCluster
from schemas.base import CommandRefused
from schemas.job import JobScheduled, StopReason
from schemas.node import (
    CordonMachine,
    FailureKind,
    MachineCordoned,
    MachineUncordoned,
    NodeLost,
    NodePreempted,
    NodesProvisioned,
    NodesQueued,
    NodesReleased,
    PoolCapacityChanged,
    ProvisioningFailed,
    SetPoolCapacity,
    UncordonMachine,
)
from schemas.training import TrainingStarted, TrainingStopped
from shared.clock import utc_now
from shared.processes.identity import signal_marked
from tests.integration.attempts import Attempts
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.integration.slurm import blocked, idle, running_jobs
from tests.integration.test_provisioner import POOLS, name_of, processes_of, training
from tests.waiting import until

pytestmark = pytest.mark.stack

SLURM_POOL = """
[pools.cluster]
capacity_type = "spot"
device = "cpu"
nodes = 8
price_per_device_hour = 0.10
backend = "slurm"
cordon_after_failures = 2

[pools.cluster.slurm]
folder = "{folder}/cluster"
conf = "{conf}"
partition = "spot"
flags = ["--exclusive"]

[pools.counted]
capacity_type = "spot"
device = "cpu"
backend = "slurm"

[pools.counted.slurm]
folder = "{folder}/counted"
conf = "{conf}"
partition = "spot"
"""


@pytest.fixture(scope="module")
def env(stack: Stack, slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("provisioner")
    pools = POOLS + SLURM_POOL.format(folder=folder, conf=slurm.conf)
    return provisioner_env_of(stack, folder, pools, save_seconds=3.0) | {"PROVISIONER_COUNT_EVERY": "PT1S"}


@pytest.fixture(scope="module")
async def attempts(stack: Stack, env: dict[str, str]) -> AsyncIterator[Attempts]:
    async with attempts_on(stack, env) as attempts:
        yield attempts


async def test_a_gang_is_preempted_with_notice_and_its_nodes_are_released(stack, attempts, slurm, env):
    scheduled = await attempts.schedule(pool="cluster", nodes=2)
    beside = await attempts.schedule()
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
        late = await attempts.schedule(start_deadline=deadline)
        await attempts.until(late.job_id, NodesProvisioned)
        for pid in processes_of(late):
            os.kill(pid, signal.SIGSTOP)
        await attempts.until(scheduled.job_id, NodesQueued, pool="cluster", waiting_for="Resources")
        await attempts.until(late.job_id, NodesReleased)
        assert {*attempts.story(scheduled.job_id, "node.events")} == {"NodesQueued"}
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


async def lose(attempts: Attempts, scheduled: JobScheduled) -> str:
    """Kill the runner of the attempt's only node; the name of its machine."""
    await training(attempts, scheduled)
    signal_marked(f"RUNNER_NODE_ID={name_of(scheduled)}-n0", signal.SIGKILL)
    lost = await attempts.until(scheduled.job_id, NodeLost)
    await attempts.until(scheduled.job_id, NodesReleased)
    assert lost.host
    return lost.host


async def host_of(attempts: Attempts, scheduled: JobScheduled) -> str:
    """Let the attempt of one node run until its machine is known, and stop it."""
    database = await asyncpg.connect(attempts.stack.postgres_dsn("provisioner"))
    query = "SELECT host IS NOT NULL FROM node WHERE (job_id, number) = ($1, $2)"

    async def is_known() -> bool:
        return bool(await database.fetchval(query, scheduled.job_id, scheduled.attempt))

    await until(is_known)
    await database.close()
    await attempts.stop(scheduled, seconds=0)
    released = await attempts.until(scheduled.job_id, NodesReleased, attempt=scheduled.attempt)
    assert released.nodes[0].host
    return released.nodes[0].host


async def test_a_machine_is_avoided_by_the_job_that_it_failed_and_by_all_after_two(attempts, slurm):
    async def ready() -> None:
        await until(lambda: idle(slurm) == set(slurm.nodes), every=0.25)

    await ready()
    first = await attempts.schedule(pool="cluster")
    host = await lose(attempts, first)
    assert attempts.heard("cluster", MachineCordoned) == []
    again = await attempts.schedule(first.job_id, attempt=2, pool="cluster")
    assert await host_of(attempts, again) != host

    await ready()
    second = await attempts.schedule(pool="cluster")
    assert await lose(attempts, second) == host
    cordoned = await attempts.until("cluster", MachineCordoned)
    assert (cordoned.machine, cordoned.source) == (host, "failures")
    assert cordoned.reason.startswith(
        "2 failures of 2 jobs within 24 h; the last: the runner of node a-ftjob-"
    )
    capacity = await attempts.until("cluster", PoolCapacityChanged, nodes=7, cordoned=(host,))
    assert [(each.job_id, each.machine, each.kind) for each in capacity.failures] == [
        (second.job_id, host, FailureKind.NODE_LOST),
        (first.job_id, host, FailureKind.NODE_LOST),
    ]
    assert all(each.counts_until for each in capacity.failures)
    assert (capacity.cordon_after_failures, capacity.cordon_after_jobs) == (2, 2)

    await ready()
    assert await host_of(attempts, await attempts.schedule(pool="cluster")) != host
    await attempts.write("admin", UncordonMachine(pool="cluster", machine=host))
    await attempts.until("cluster", MachineUncordoned)

    def count_no_more() -> bool:
        announced = (fact.failures for fact in attempts.heard("cluster", PoolCapacityChanged))
        return any([each.counts_until for each in failures] == [None, None] for failures in announced)

    await until(count_no_more, every=0.25)
    await attempts.until("cluster", PoolCapacityChanged, nodes=8, cordoned=())

    await ready()
    assert await lose(attempts, await attempts.schedule(pool="cluster")) == host
    assert len(attempts.heard("cluster", MachineCordoned)) == 1, "what was before counts no more"


async def test_a_name_that_slurm_does_not_know_keeps_no_job_from_it(attempts, slurm):
    await attempts.write("admin", CordonMachine(pool="cluster", machine="gone", reason="sold"))
    await attempts.until("cluster", MachineCordoned, machine="gone", source="operator", reason="sold")
    assert await host_of(attempts, await attempts.schedule(pool="cluster")) in slurm.nodes
    await attempts.write("admin", UncordonMachine(pool="cluster", machine="gone"))
    await attempts.until("cluster", MachineUncordoned, machine="gone")


async def test_a_pool_that_does_not_say_its_nodes_has_those_that_take_work(attempts, slurm):
    await attempts.until("counted", PoolCapacityChanged, nodes=len(slurm.nodes))
    slurm.run("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=test")
    try:
        await attempts.until("counted", PoolCapacityChanged, nodes=len(slurm.nodes) - 1, cordoned=())
        await attempts.write("admin", CordonMachine(pool="counted", machine="n2", reason="fan"))
        await attempts.until(
            "counted", PoolCapacityChanged, nodes=len(slurm.nodes) - 2, cordoned=("n2",), free=2
        )
    finally:
        slurm.run("scontrol", "update", "NodeName=n3", "State=RESUME")
    await attempts.until("counted", PoolCapacityChanged, nodes=len(slurm.nodes) - 1, cordoned=("n2",))
    await attempts.write("admin", UncordonMachine(pool="counted", machine="n2"))
    await attempts.until("counted", MachineUncordoned)
    await attempts.write("admin", SetPoolCapacity(pool="counted", nodes=1))
    refusal = await attempts.until("counted", CommandRefused)
    assert refusal.code == "nodes_counted"
    assert "pool counted has the nodes of its cluster" in refusal.message
