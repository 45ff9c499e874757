"""Services lease devices of the pools that train: who waits for whom, what ends a lease, over kills and races."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.base import CommandRefused
from schemas.job import CancelJob
from schemas.node import (
    DeviceLeaseEnded,
    DeviceLeaseQueued,
    DevicesLeased,
    LeasedDevices,
    LeaseDevices,
    LeaseEnd,
    NodesProvisioned,
    NodesReleased,
    PoolCapacityChanged,
    ProvisioningFailed,
    ReturnDevices,
)
from shared.clock import utc_now
from tests.integration.attempts import TENANT, Attempts
from tests.integration.kills import alive, killed_at, second_process
from tests.integration.provisioning import attempts_on, provisioner_env_of
from tests.integration.test_provisioner_devices import state_of, submit
from tests.integration.voices import Ear, ear
from tests.waiting import until

pytestmark = pytest.mark.stack

POOLS = """
[pools.shared]
capacity_type = "spot"
device = "cpu"
nodes = 1
devices_per_node = 2
price_per_device_hour = 0.10

[pools.apart]
capacity_type = "spot"
device = "cpu"
nodes = 2
devices_per_node = 3
"""
MINUTE = timedelta(minutes=1)
DEVICES = (
    "SELECT device, coalesce(lease_id, node_id) AS holder FROM device_lease WHERE pool = $1 ORDER BY device"
)


@pytest.fixture(scope="module")
def env(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return provisioner_env_of(stack, tmp_path_factory.mktemp("leases"), POOLS)


@pytest.fixture(scope="module")
async def attempts(stack: Stack, env: dict[str, str]) -> AsyncIterator[Attempts]:
    async with attempts_on(stack, env) as attempts:
        yield attempts


@pytest.fixture
async def database(attempts: Attempts) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(attempts.stack.postgres_dsn("provisioner"))
    yield conn
    await conn.close()


@pytest.fixture(scope="module")
async def queue(stack: Stack) -> AsyncIterator[Ear]:
    async with ear(stack, "queue.events") as heard:
        yield heard


async def ask(
    attempts: Attempts,
    lease_id: str = "",
    *,
    purpose: str = "serving",
    devices: int = 1,
    pool: str = "shared",
    has_node: bool = False,
    term: timedelta = 10 * MINUTE,
) -> str:
    """Ask for devices as the serving controller does; the lease's id."""
    command = LeaseDevices(
        lease_id=lease_id or f"lease-{uuid4().hex[:8]}",
        holder="serving_controller",
        purpose=purpose,
        pool=pool,
        has_node=has_node,
        devices=devices,
        until=utc_now() + term,
    )
    await attempts.write("serving_controller", command)
    return command.lease_id


async def give_back(attempts: Attempts, *lease_ids: str) -> None:
    for lease_id in lease_ids:
        await attempts.write("serving_controller", ReturnDevices(lease_id=lease_id))
        await attempts.until(lease_id, DeviceLeaseEnded, reason=LeaseEnd.RETURNED)


async def holders(database: asyncpg.Connection, pool: str = "shared") -> dict[int, str]:
    return {row["device"]: row["holder"] for row in await database.fetch(DEVICES, pool)}


async def test_a_lease_waits_for_training_and_goes_before_the_next_job(
    attempts: Attempts, database: asyncpg.Connection
):
    # Two jobs are on two partitions: the first one gets the first device only if it is alone.
    pair = []
    for _ in range(2):
        pair.append(await attempts.schedule(pool="shared"))
        await attempts.until(pair[-1].job_id, NodesProvisioned)
    lease = await ask(attempts, purpose="scoring")
    queued = await attempts.until(lease, DeviceLeaseQueued)
    assert queued.waiting_for == "1 device of one machine of pool shared: 2 held by jobs"
    waiting = (LeasedDevices(purpose="scoring", devices=1),)
    await attempts.until("shared", PoolCapacityChanged, free_devices=0, leases=waiting)

    await attempts.stop(pair[0], seconds=0)
    leased = await attempts.until(lease, DevicesLeased)
    assert (leased.machine, leased.devices, leased.device) == (0, (0,), "cpu")
    await attempts.until(pair[0].job_id, NodesReleased)
    late = await attempts.schedule(pool="shared", machines=(0,))
    assert (await attempts.until(late.job_id, ProvisioningFailed)).code == "no_capacity"
    assert (await holders(database))[0] == lease

    await give_back(attempts, lease)
    again = await attempts.schedule(pool="shared", machines=(0,))
    [node] = (await attempts.until(again.job_id, NodesProvisioned)).nodes
    assert node.devices == (0,)
    for scheduled in (pair[1], again):
        await attempts.stop(scheduled, seconds=0)
        await attempts.until(scheduled.job_id, NodesReleased)
    assert await holders(database) == {}


async def test_a_lease_that_is_not_extended_ends_and_the_next_one_gets_its_devices(
    attempts: Attempts, database: asyncpg.Connection
):
    forgotten = await ask(attempts, devices=2, term=timedelta(seconds=5))
    until_then = (await attempts.until(forgotten, DevicesLeased)).until
    next_one = await ask(attempts)
    await attempts.until(next_one, DeviceLeaseQueued)
    await attempts.until(forgotten, DeviceLeaseEnded, reason=LeaseEnd.EXPIRED)
    assert utc_now() > until_then + timedelta(seconds=10), "its processes have time to end"
    await attempts.until(next_one, DevicesLeased)
    await ask(attempts, forgotten, devices=2)
    await attempts.until(forgotten, DeviceLeaseEnded, times=2)
    assert await holders(database) == {0: next_one}
    await give_back(attempts, next_one)


async def test_a_lease_that_is_extended_outlives_its_first_term(attempts: Attempts):
    lease = await ask(attempts, term=timedelta(seconds=5))
    first = await attempts.until(lease, DevicesLeased)
    await ask(attempts, lease, term=2 * MINUTE)
    second = await attempts.until(lease, DevicesLeased, times=2)
    assert (second.devices, second.until - first.until > MINUTE) == (first.devices, True)
    await asyncio.sleep(25)
    assert attempts.heard(lease, DeviceLeaseEnded) == []
    await give_back(attempts, lease)


async def test_what_cannot_be_leased_is_refused(attempts: Attempts):
    for changes, code in (
        ({"pool": "moon"}, "unknown_pool"),
        ({"devices": 3}, "too_many_devices"),
        ({"term": -MINUTE}, "too_late"),
    ):
        lease = await ask(attempts, **changes)
        assert (await attempts.until(lease, CommandRefused)).code == code
    await attempts.write("serving_controller", ReturnDevices(lease_id="lease-of-nobody"))
    assert (await attempts.until("lease-of-nobody", CommandRefused)).code == "unknown_lease"


async def test_a_provisioner_that_dies_between_the_command_and_its_commit_leases_once(
    attempts: Attempts, database: asyncpg.Connection, env: dict[str, str], stack: Stack
):
    # It has announced its two pools by then.
    async with killed_at(stack, "provisioner", "outbox.inserted", at_pass=3, env=env):
        lease = await ask(attempts, pool="apart")
    assert await holders(database, "apart") == {}
    await alive(stack, "provisioner", env=env)
    leased = await attempts.until(lease, DevicesLeased)
    await give_back(attempts, lease)
    assert attempts.heard(lease, DevicesLeased) == [leased]
    assert await holders(database, "apart") == {}


async def test_many_leases_at_two_provisioners_never_share_a_device(
    attempts: Attempts, database: asyncpg.Connection, env: dict[str, str], stack: Stack
):
    async with second_process(stack, "provisioner", env=env):
        await stack.wait_healthy("provisioner-1")
        sizes = [1 + number % 3 for number in range(24)]
        asking = (ask(attempts, pool="apart", devices=devices) for devices in sizes)
        leases = await asyncio.gather(*asking)
        left, had = set(leases), set[int]()
        while left:
            held = [lease for lease in left if attempts.heard(lease, DevicesLeased)]
            devices = [each for lease in held for each in attempts.heard(lease, DevicesLeased)[0].devices]
            assert len(devices) == len(set(devices)) <= 6
            had |= set(devices)
            if held:
                await give_back(attempts, held[0])
                left.discard(held[0])
            else:
                await asyncio.sleep(0.05)
    assert had == set(range(6))
    assert await holders(database, "apart") == {}


async def test_a_job_waits_while_serving_holds_its_devices_and_says_so(
    attempts: Attempts, queue: Ear, stack: Stack
):
    await stack.start("scheduler", env={"SCHEDULER_ANNOUNCE_EVERY": "PT1S"})
    await stack.wait_healthy("scheduler")
    scheduler = await asyncpg.connect(stack.postgres_dsn("scheduler"))
    replica, candidate = await ask(attempts), await ask(attempts, purpose="scoring")
    for lease in (replica, candidate):
        await attempts.until(lease, DevicesLeased)

    async def has_heard() -> bool:
        """Else it may place the job on their devices, which ends in no_capacity."""
        return bool(
            await scheduler.fetchval("SELECT jsonb_array_length(leases) = 2 FROM pool WHERE name = 'shared'")
        )

    await until(has_heard)
    job_id = await submit(attempts, devices_per_node=1)
    position = await queue.until_any(job_id, "QueuePositionChanged")
    assert position.waiting_for == (
        "waits for 1 device of one node (spot-first): shared has 0 of 2 devices free "
        "(1 held by scoring, 1 held by serving)"
    )
    assert position.estimated_start is None
    assert await state_of(scheduler, job_id) == "queued"
    attempt = await scheduler.fetchval("SELECT attempt FROM job WHERE id = $1", job_id)
    await give_back(attempts, replica)
    await attempts.until(job_id, NodesProvisioned)
    assert attempt == 0, "no attempt was made on leased devices"
    await attempts.write("gateway", CancelJob(job_id=job_id, tenant=TENANT))
    await attempts.until(job_id, NodesReleased)
    await give_back(attempts, candidate)
    await scheduler.close()
    await stack.stop("scheduler")
