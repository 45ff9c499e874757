"""Jobs that share a machine, on real Kafka and Postgres with real runners: who has which devices, over a kill."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.job import JobScheduled
from schemas.node import (
    DrainNode,
    NodePreempted,
    NodesProvisioned,
    NodesReleased,
    PoolCapacityChanged,
    ProvisioningFailed,
    SetPoolCapacity,
)
from schemas.training import StepReached
from shared.processes.identity import marked
from tests.integration.attempts import FAKE_CHILD, Attempts
from tests.integration.backend_suite import until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

POOLS = """
[pools.shared]
capacity_type = "spot"
device = "cpu"
nodes = 1
devices_per_node = 2
price_per_device_hour = 0.10
"""
CHILD = [sys.executable, str(FAKE_CHILD), json.dumps({"steps": 10_000, "hold_at": 3})]
LEASES = "SELECT device, node_id FROM device_lease WHERE pool = 'shared' ORDER BY device"


@pytest.fixture(scope="module")
def provisioner_env(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("devices")
    (folder / "pools.toml").write_text(POOLS)
    own = f"RUNNER_CHILD_ARGV='{json.dumps(CHILD)}'\nRUNNER_HEARTBEAT_EVERY='PT0.5S'\n"
    (folder / "runner.env").write_text((stack.state.root / "runner.env").read_text() + own)
    return {
        "PROVISIONER_POOLS_FILE": str(folder / "pools.toml"),
        "PROVISIONER_NODES_DIR": str(folder / "nodes"),
        "PROVISIONER_RUNNER_ENV_FILE": str(folder / "runner.env"),
    }


@pytest.fixture(scope="module")
async def attempts(stack: Stack, provisioner_env: dict[str, str]) -> AsyncIterator[Attempts]:
    async with Attempts.on(stack) as attempts:
        await stack.start("provisioner", env=provisioner_env)
        await stack.start("trainer_agent")
        await stack.wait_healthy("provisioner")
        await stack.wait_healthy("trainer_agent")
        yield attempts
        await stack.stop("trainer_agent")
        await stack.stop("provisioner")


@pytest.fixture
async def database(attempts: Attempts) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(attempts.stack.postgres_dsn("provisioner"))
    yield conn
    await conn.close()


def node_of(scheduled: JobScheduled) -> str:
    return f"{layout.attempt_name(scheduled.job_id, scheduled.attempt)}-n0"


def environment_of(scheduled: JobScheduled) -> dict[str, str]:
    """Return what the runner of the node was started with."""
    process = next(iter(marked(f"RUNNER_NODE_ID={node_of(scheduled)}")))
    lines = Path("/proc", str(process.pid), "environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


async def leases(database: asyncpg.Connection) -> dict[int, str]:
    return {row["device"]: row["node_id"] for row in await database.fetch(LEASES)}


async def test_two_jobs_share_a_machine_and_one_that_wants_it_whole_waits_for_both(
    attempts: Attempts, database: asyncpg.Connection, provisioner_env: dict[str, str]
):
    first = await attempts.schedule(pool="shared")
    second = await attempts.schedule(pool="shared", machines=(0,))
    for scheduled in (first, second):
        await attempts.until(scheduled.job_id, StepReached)
    held = {0: node_of(first), 1: node_of(second)}
    assert await leases(database) == held
    [node] = (await attempts.until(second.job_id, NodesProvisioned)).nodes
    assert (node.machine, node.devices, str(node.price_per_hour)) == (0, (1,), "0.10")
    assert [environment_of(each)["RUNNER_DEVICES"] for each in (first, second)] == ["0", "1"]
    assert "CUDA_VISIBLE_DEVICES" not in environment_of(second)
    await attempts.until("shared", PoolCapacityChanged, free=0, free_devices=0)

    refused = await attempts.schedule(pool="shared", devices_per_node=2)
    failed = await attempts.until(refused.job_id, ProvisioningFailed)
    assert (failed.code, failed.message.endswith("pool shared has free: none")) == ("no_capacity", True)

    await attempts.stack.kill("provisioner")
    await attempts.stack.start("provisioner", env=provisioner_env)
    await attempts.stop(first, seconds=0)
    await attempts.until(first.job_id, NodesReleased)
    assert await leases(database) == {1: node_of(second)}
    await attempts.until("shared", PoolCapacityChanged, free=0, free_devices=1)
    one_short = await attempts.schedule(pool="shared", devices_per_node=2)
    assert (await attempts.until(one_short.job_id, ProvisioningFailed)).code == "no_capacity"

    await attempts.stop(second, seconds=0)
    await attempts.until(second.job_id, NodesReleased)
    large = await attempts.schedule(pool="shared", devices_per_node=2)
    await attempts.until(large.job_id, NodesProvisioned)
    await until(lambda: bool(list(marked(f"RUNNER_NODE_ID={node_of(large)}"))))
    assert environment_of(large)["RUNNER_DEVICES"] == "0,1"
    assert await leases(database) == {0: node_of(large), 1: node_of(large)}
    await attempts.stop(large, seconds=0)
    await attempts.until(large.job_id, NodesReleased)
    assert await leases(database) == {}


async def test_a_drain_gives_notice_to_both_jobs_of_the_machine(
    attempts: Attempts, database: asyncpg.Connection
):
    pair = [await attempts.schedule(pool="shared") for _ in range(2)]
    for scheduled in pair:
        await attempts.until(scheduled.job_id, NodesProvisioned)
    await attempts.write("admin", DrainNode(node_id=node_of(pair[0]), grace_seconds=20))
    for scheduled in pair:
        assert (await attempts.until(scheduled.job_id, NodePreempted)).source == "drain"
    await attempts.until("shared", PoolCapacityChanged, nodes=0, drained=(0,))
    for scheduled in pair:
        await attempts.stop(scheduled, seconds=0)
        await attempts.until(scheduled.job_id, NodesReleased)
    await attempts.write("admin", SetPoolCapacity(pool="shared", nodes=1))
    await attempts.until("shared", PoolCapacityChanged, nodes=1, free_devices=2, drained=())


async def test_a_device_is_leased_once_by_the_database_itself(
    attempts: Attempts, database: asyncpg.Connection
):
    scheduled = await attempts.schedule(pool="shared")
    await attempts.until(scheduled.job_id, NodesProvisioned)
    with pytest.raises(asyncpg.UniqueViolationError):
        await database.execute(
            "INSERT INTO device_lease (pool, machine, device, node_id) VALUES ('shared', 0, 0, $1)",
            node_of(scheduled),
        )
    await attempts.stop(scheduled, seconds=0)
    await attempts.until(scheduled.job_id, NodesReleased)
