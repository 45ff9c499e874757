"""The provisioner with its local backend, real runners and the control side, on real Kafka and Postgres."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.base import CommandRefused
from schemas.job import JobScheduled, StopReason
from schemas.node import (
    DrainNode,
    NodeLost,
    NodePreempted,
    NodesProvisioned,
    NodesReleased,
    PoolCapacityChanged,
    PreemptNode,
    ProvisioningFailed,
    SetPoolCapacity,
)
from schemas.training import StepReached, TrainingFailed, TrainingStarted, TrainingStopped
from shared.clock import utc_now
from shared.processes.identity import marked
from tests.integration.attempts import Attempts
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.waiting import until

pytestmark = pytest.mark.stack

POOLS = """
[pools.test]
capacity_type = "spot"
device = "cpu"
nodes = 4
devices_per_node = 1
price_per_device_hour = 0.10

[pools.small]
capacity_type = "on-demand"
device = "cpu"
nodes = 1
devices_per_node = 1
price_per_device_hour = 0.30
"""


@pytest.fixture(scope="module")
def provisioner_env(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return provisioner_env_of(stack, tmp_path_factory.mktemp("provisioner"), POOLS)


@pytest.fixture(scope="module")
async def attempts(stack: Stack, provisioner_env: dict[str, str]) -> AsyncIterator[Attempts]:
    async with attempts_on(stack, provisioner_env) as attempts:
        yield attempts


@pytest.fixture
async def schedule(attempts: Attempts) -> AsyncIterator[Callable[..., Any]]:
    """Schedules attempts that are stopped and gone when the test ends."""
    all_scheduled: list[JobScheduled] = []

    async def scheduling(**changes: Any) -> JobScheduled:
        all_scheduled.append(await attempts.schedule(**changes))
        return all_scheduled[-1]

    yield scheduling
    for scheduled in all_scheduled:
        if not attempts.heard(scheduled.job_id, NodesReleased):
            await attempts.stop(scheduled, seconds=0)
    for scheduled in all_scheduled:
        await attempts.until(scheduled.job_id, NodesReleased)


def name_of(scheduled: JobScheduled) -> str:
    return layout.attempt_name(scheduled.job_id, scheduled.attempt)


def processes_of(scheduled: JobScheduled, node: int = 0) -> list[int]:
    return [process.pid for process in marked(f"RUNNER_NODE_ID={name_of(scheduled)}-n{node}")]


async def training(attempts: Attempts, scheduled: JobScheduled) -> NodesProvisioned:
    """Once the child of the attempt has done a step."""
    await attempts.until(scheduled.job_id, StepReached)
    return await attempts.until(scheduled.job_id, NodesProvisioned)


async def free_nodes(attempts: Attempts, pool: str) -> int:
    await attempts.until(pool, PoolCapacityChanged)
    return attempts.heard(pool, PoolCapacityChanged)[-1].free


class TestReservation:
    async def test_turns_an_order_into_runners_and_releases_them_when_they_have_exited(
        self, attempts, schedule
    ):
        before = await free_nodes(attempts, "test")
        scheduled = await schedule(nodes=2)
        provisioned = await training(attempts, scheduled)
        assert [node.node_id for node in provisioned.nodes] == [
            f"{name_of(scheduled)}-n{n}" for n in range(2)
        ]
        assert str(provisioned.nodes[0].price_per_hour) == "0.10"
        assert await free_nodes(attempts, "test") == before - 2
        await attempts.stop(scheduled, seconds=60)
        released = await attempts.until(scheduled.job_id, NodesReleased)
        assert all(node.released_at > node.allocated_at for node in released.nodes)
        assert attempts.heard(scheduled.job_id, NodeLost) == []
        await attempts.until("test", PoolCapacityChanged, free=before)
        assert processes_of(scheduled) == processes_of(scheduled, 1) == []

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"pool": "small", "nodes": 2}, "no_capacity"),
            ({"pool": "moon"}, "unknown_pool"),
            ({"devices_per_node": 2}, "too_many_devices"),
        ],
        ids=["no capacity", "unknown pool", "devices"],
    )
    async def test_refuses_what_does_not_fit_and_answers_its_stop(self, attempts, schedule, changes, code):
        scheduled = await schedule(**changes)
        assert (await attempts.until(scheduled.job_id, ProvisioningFailed)).code == code
        await attempts.stop(scheduled)
        assert (await attempts.until(scheduled.job_id, NodesReleased)).nodes == ()
        assert attempts.heard(scheduled.job_id, NodesProvisioned) == []

    async def test_never_gives_more_than_a_pool_has(self, attempts, schedule):
        first, second = await schedule(pool="small"), await schedule(pool="small")
        await attempts.until(first.job_id, NodesProvisioned)
        assert (await attempts.until(second.job_id, ProvisioningFailed)).code == "no_capacity"

    async def test_the_operator_sets_capacity(self, attempts, schedule):
        await attempts.write("admin", SetPoolCapacity(pool="small", nodes=0))
        await attempts.until("small", PoolCapacityChanged, nodes=0)
        refused = await schedule(pool="small")
        assert (await attempts.until(refused.job_id, ProvisioningFailed)).code == "no_capacity"
        await attempts.write("admin", SetPoolCapacity(pool="small", nodes=1))
        await attempts.until("small", PoolCapacityChanged, nodes=1, times=2)
        scheduled = await schedule(pool="small")
        await attempts.until(scheduled.job_id, NodesProvisioned)


class TestStop:
    async def test_at_its_deadline_whoever_is_left_is_ended(self, attempts, schedule):
        scheduled = await schedule(nodes=1)
        await training(attempts, scheduled)
        for pid in processes_of(scheduled):
            os.kill(pid, signal.SIGSTOP)
        await attempts.stop(scheduled, seconds=2)
        await attempts.until(scheduled.job_id, NodesReleased)
        assert processes_of(scheduled) == []
        stopped = await attempts.until(scheduled.job_id, TrainingStopped)
        assert (stopped.reason, stopped.bundle) == ("cancel", None)

    async def test_that_overtakes_the_start_leaves_nothing(self, attempts, schedule):
        scheduled = await schedule(nodes=2)
        await attempts.stop(scheduled, seconds=0)
        await attempts.until(scheduled.job_id, NodesReleased)
        assert processes_of(scheduled) == processes_of(scheduled, 1) == []

    async def test_is_answered_once(self, attempts, schedule):
        scheduled = await schedule(nodes=1)
        await training(attempts, scheduled)
        await attempts.stop(scheduled, seconds=0)
        await attempts.until(scheduled.job_id, NodesReleased)
        await attempts.stop(scheduled, seconds=0, reason=StopReason.BUDGET)
        await attempts.write("admin", PreemptNode(node_id=f"job:{scheduled.job_id}"))
        # The refusal comes after whatever the second stop might have caused.
        await attempts.until(f"job:{scheduled.job_id}", CommandRefused)
        assert len(attempts.heard(scheduled.job_id, NodesReleased)) == 1


class TestPreemption:
    async def test_with_notice_the_runner_saves_and_the_node_is_not_lost(self, attempts, schedule):
        scheduled = await schedule(nodes=1)
        await training(attempts, scheduled)
        await attempts.write("admin", PreemptNode(node_id=f"job:{scheduled.job_id}", notice_seconds=25))
        preempted = await attempts.until(scheduled.job_id, NodePreempted)
        assert (preempted.node_id, preempted.source) == (f"{name_of(scheduled)}-n0", "operator")
        await attempts.stop(scheduled, seconds=25, reason=StopReason.PREEMPT)
        stopped = await attempts.until(scheduled.job_id, TrainingStopped, seconds=24)
        assert stopped.bundle.step == stopped.last_step
        await attempts.until(scheduled.job_id, NodesReleased)
        assert attempts.heard(scheduled.job_id, NodeLost) == []

    async def test_ends_the_node_at_the_deadline(self, attempts, schedule):
        scheduled = await schedule(nodes=1)
        await training(attempts, scheduled)
        for pid in processes_of(scheduled):
            os.kill(pid, signal.SIGSTOP)
        began = utc_now()
        await attempts.write("admin", PreemptNode(node_id=f"{name_of(scheduled)}-n0", notice_seconds=2))
        await attempts.until(scheduled.job_id, NodesReleased)
        assert utc_now() - began > timedelta(seconds=2)
        assert attempts.heard(scheduled.job_id, NodeLost) == []

    async def test_without_notice_is_a_loss(self, attempts, schedule):
        scheduled = await schedule(nodes=1)
        await training(attempts, scheduled)
        await attempts.write("admin", PreemptNode(node_id=f"{name_of(scheduled)}-n0", notice_seconds=0))
        lost = await attempts.until(scheduled.job_id, NodeLost)
        assert lost.node_id == f"{name_of(scheduled)}-n0"
        # Runner 0 said nothing: the attempt ends when its nodes are released and all reports are read.
        assert (await attempts.until(scheduled.job_id, TrainingStopped)).reason == "failure"
        assert attempts.heard(scheduled.job_id, TrainingFailed)[0].failure_class == "infra"

    async def test_of_nothing_is_refused(self, attempts):
        await attempts.write("admin", PreemptNode(node_id="a-ftjob-none-e1-n0"))
        refused = await attempts.until("a-ftjob-none-e1-n0", CommandRefused)
        assert (refused.code, refused.param) == ("unknown_node", "node_id")

    async def test_a_drained_node_gets_notice_and_its_pool_shrinks(self, attempts, schedule):
        scheduled = await schedule(nodes=1)
        await training(attempts, scheduled)
        pool = attempts.heard("test", PoolCapacityChanged)[-1]
        await attempts.write("admin", DrainNode(node_id=f"{name_of(scheduled)}-n0", grace_seconds=20))
        assert (await attempts.until(scheduled.job_id, NodePreempted)).source == "drain"
        await attempts.until("test", PoolCapacityChanged, nodes=pool.nodes - 1)
        await attempts.write("admin", SetPoolCapacity(pool="test", nodes=pool.nodes))


class TestLoss:
    async def test_of_one_node_of_a_gang_is_reported(self, attempts, schedule):
        scheduled = await schedule(nodes=2)
        await training(attempts, scheduled)
        for pid in processes_of(scheduled, 1):
            os.kill(pid, signal.SIGKILL)
        assert (await attempts.until(scheduled.job_id, NodeLost)).node_id == f"{name_of(scheduled)}-n1"
        [request] = attempts.requests(scheduled.job_id, NodesProvisioned)
        assert attempts.requests(scheduled.job_id, NodeLost) == {request}, "no message said so"
        assert attempts.heard(scheduled.job_id, NodesReleased) == []
        assert processes_of(scheduled, 0)

    async def test_of_the_start_deadline_releases_the_nodes(self, attempts, schedule):
        """One runner of two never reports: the gang cannot start."""
        scheduled = await schedule(nodes=2, start_deadline=utc_now() + timedelta(seconds=3))
        await attempts.until(scheduled.job_id, NodesProvisioned)
        for pid in processes_of(scheduled, 1):
            os.kill(pid, signal.SIGSTOP)
        await attempts.until(scheduled.job_id, NodesReleased)
        assert attempts.heard(scheduled.job_id, TrainingStarted) == []
        assert (await attempts.until(scheduled.job_id, TrainingStopped)).reason == "failure"


class TestRestart:
    async def test_sees_its_nodes_again_and_what_happened_meanwhile(
        self, attempts, schedule, provisioner_env
    ):
        gone, alive = await schedule(nodes=1), await schedule(nodes=1)
        await training(attempts, gone)
        await training(attempts, alive)
        await attempts.stack.stop("provisioner")
        for pid in processes_of(gone):
            os.kill(pid, signal.SIGKILL)
        await attempts.stack.start("provisioner", env=provisioner_env)
        assert (await attempts.until(gone.job_id, NodeLost)).node_id == f"{name_of(gone)}-n0"
        assert processes_of(alive)
        assert attempts.heard(alive.job_id, NodeLost) == []
        assert len(attempts.heard(alive.job_id, NodesProvisioned)) == 1

    async def test_an_orphan_is_removed(self, attempts, provisioner_env):
        nodes = Path(provisioner_env["PROVISIONER_NODES_DIR"])
        mark = "RUNNER_NODE_ID=a-ftjob-orphan-e1-n0"
        orphan = await asyncio.create_subprocess_exec(
            "sleep", "600", env=os.environ | dict([mark.split("=")]), start_new_session=True
        )
        folder = nodes / "a-ftjob-orphan-e1" / "0"
        folder.mkdir(parents=True)
        (folder.parent / "spec.json").write_text('{"digest": "", "nodes": 1}')
        await until(lambda: not any(marked(mark)))
        await orphan.wait()
        await until(lambda: any((nodes / "forgotten").glob(f"*/{folder.parent.name}")))
        assert not folder.parent.exists()

    async def test_killed_between_creation_and_its_record_creates_once(
        self, attempts, schedule, provisioner_env
    ):
        await attempts.stack.stop("provisioner")
        armed = provisioner_env | {"FAILPOINTS": "provider.create.after=kill"}
        await attempts.stack.start("provisioner", env=armed)
        scheduled = await schedule(nodes=1)
        await until(lambda: bool(processes_of(scheduled)))
        await until(lambda: _is_down(attempts.stack, "provisioner"))
        await attempts.stack.stop("provisioner")
        await attempts.stack.start("provisioner", env=provisioner_env)
        await training(attempts, scheduled)
        log = provisioner_env["PROVISIONER_NODES_DIR"] + f"/{name_of(scheduled)}/0/pid"
        assert Path(log).read_text().split()[0] in [str(pid) for pid in processes_of(scheduled)]
        assert len(attempts.heard(scheduled.job_id, NodesProvisioned)) == 1


async def test_the_truth_of_capacity_is_in_the_database(attempts):
    """After all of the above nothing is held any more."""
    conn = await asyncpg.connect(attempts.stack.postgres_dsn("provisioner"))
    try:
        held = "SELECT count(*) FROM node WHERE released_at IS NULL"

        async def nothing_is_held() -> bool:
            return await conn.fetchval(held) == 0

        await until(nothing_is_held)
        states = await conn.fetch("SELECT DISTINCT state FROM attempt")
        assert {row["state"] for row in states} <= {"released", "refused"}
    finally:
        await conn.close()


def _is_down(stack: Stack, name: str) -> bool:
    try:
        return not Path(f"/proc/{stack.pid(name)}/exe").exists()
    except Exception:  # noqa: BLE001 - whatever it says, it has no process
        return True
