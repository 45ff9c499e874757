"""Jobs that share a machine, on real Kafka and Postgres with real runners: who has which devices, over a kill."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas import layout
from schemas.dataset import DatasetReady
from schemas.job import CancelJob, JobScheduled, SubmitJob
from schemas.node import (
    CordonMachine,
    DrainNode,
    MachineCordoned,
    MachineUncordoned,
    NodePreempted,
    NodesProvisioned,
    NodesReleased,
    PoolCapacityChanged,
    ProvisioningFailed,
    SetPoolCapacity,
    UncordonMachine,
)
from schemas.specification import Resources
from schemas.training import StepReached
from shared.processes.identity import marked, signal_marked
from tests.builders import a_dataset, a_job_spec
from tests.integration.attempts import TENANT, Attempts
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.waiting import until

pytestmark = pytest.mark.stack

POOLS = """
[pools.shared]
capacity_type = "spot"
device = "cpu"
nodes = 1
devices_per_node = 2
price_per_device_hour = 0.10
"""
LEASES = "SELECT device, node_id FROM device_lease WHERE pool = 'shared' ORDER BY device"


@pytest.fixture(scope="module")
def provisioner_env(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return provisioner_env_of(stack, tmp_path_factory.mktemp("devices"), POOLS)


@pytest.fixture(scope="module")
async def attempts(stack: Stack, provisioner_env: dict[str, str]) -> AsyncIterator[Attempts]:
    async with attempts_on(stack, provisioner_env) as attempts:
        yield attempts


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
    await attempts.until(first.job_id, NodesProvisioned)
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


async def test_a_cordoned_machine_takes_nothing_and_a_failed_device_is_taken_last(attempts: Attempts):
    await attempts.write("admin", CordonMachine(pool="shared", machine="0", reason="dusty"))
    await attempts.until("shared", MachineCordoned, machine="0", source="operator", reason="dusty")
    await attempts.until("shared", PoolCapacityChanged, nodes=0, cordoned=("0",), drained=(0,))
    refused = await attempts.schedule(pool="shared")
    assert (await attempts.until(refused.job_id, ProvisioningFailed)).code == "no_capacity"
    await attempts.write("admin", UncordonMachine(pool="shared", machine="0"))
    await attempts.until("shared", MachineUncordoned, machine="0")

    first = await attempts.schedule(pool="shared")
    await attempts.until(first.job_id, StepReached)
    signal_marked(f"RUNNER_NODE_ID={node_of(first)}", signal.SIGKILL)
    await attempts.until(first.job_id, NodesReleased)
    again = await attempts.schedule(first.job_id, attempt=2, pool="shared")
    [node] = (await attempts.until(first.job_id, NodesProvisioned, attempt=2)).nodes
    assert node.devices == (1,)
    await attempts.stop(again, seconds=0)
    await attempts.until(first.job_id, NodesReleased, attempt=2)


async def state_of(database: asyncpg.Connection, job_id: str) -> str | None:
    state: str | None = await database.fetchval("SELECT state FROM job WHERE id = $1", job_id)
    return state


async def submit(attempts: Attempts, *, devices_per_node: int) -> str:
    """Submit a job on a dataset that is ready; return its id."""
    like, known, mark = attempts.a_schedule(), a_dataset(), uuid4().hex[:8]
    resources = Resources(devices_per_node=devices_per_node, pool="shared", grace_seconds=5)
    spec = a_job_spec(base_model=f"base-{mark}", base_sha=like.base_sha, resources=resources)
    job = SubmitJob(job_id=f"ftjob-{mark}", tenant=like.tenant, dataset_id=f"ds-{mark}", spec=spec)
    ready = DatasetReady(
        dataset_id=job.dataset_id,
        tenant=like.tenant,
        dataset_version=like.dataset.version,
        manifest_sha256=like.dataset.manifest_sha256,
        base_sha=like.base_sha,
        template_sha256=known.template_sha256,
        counts=known.counts,
        benchmarks=known.benchmarks,
        suites=known.suites,
        files=known.files,
    )
    await attempts.write("gateway", job)
    await attempts.write("ingest", ready)
    return job.job_id


async def test_the_scheduler_starts_jobs_beside_each_other_and_the_large_one_when_both_are_over(
    attempts: Attempts, provisioner_env: dict[str, str]
):
    stack = attempts.stack
    await stack.start("scheduler")
    await stack.wait_healthy("scheduler")
    scheduler = await asyncpg.connect(stack.postgres_dsn("scheduler"))
    pair = [await submit(attempts, devices_per_node=1) for _ in range(2)]
    nodes = [(await attempts.until(job_id, NodesProvisioned)).nodes[0] for job_id in pair]
    assert sorted(node.devices for node in nodes) == [(0,), (1,)]
    for job_id in pair:
        await attempts.until(job_id, StepReached)
    large = await submit(attempts, devices_per_node=2)

    async def waits() -> bool:
        return await state_of(scheduler, large) == "queued"

    await until(waits)
    await attempts.stack.kill("provisioner")
    await attempts.stack.start("provisioner", env=provisioner_env)
    await attempts.write("gateway", CancelJob(job_id=pair[0], tenant=TENANT))
    await attempts.until(pair[0], NodesReleased)
    await attempts.until("shared", PoolCapacityChanged, free=0, free_devices=1)
    assert await waits()
    await attempts.write("gateway", CancelJob(job_id=pair[1], tenant=TENANT))
    [node] = (await attempts.until(large, NodesProvisioned)).nodes
    assert node.devices == (0, 1)
    await attempts.write("gateway", CancelJob(job_id=large, tenant=TENANT))
    await attempts.until(large, NodesReleased)
    await scheduler.close()
    await stack.stop("scheduler")
