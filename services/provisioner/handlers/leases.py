"""Leases of services: asked for, extended, given back, and over; and who waits is served whenever a pool changes."""

from datetime import datetime

from pydantic import BaseModel

from schemas.base import DeviceKind, Message
from schemas.node import LeaseDevices, LeaseEnd, ReturnDevices
from services.provisioner import leases, machines, store
from services.provisioner.handlers.tasks import BackendTask
from services.provisioner.leases import FENCE
from services.provisioner.machines import Failure, avoided, is_recent
from services.provisioner.model import Lease, LeaseNodeState, Pool
from shared.errors import Refused
from shared.log import get_logger
from shared.messaging.unit import Unit

log = get_logger(__name__)


class LeaseDue(BaseModel):
    """Timer: the lease may be over."""

    lease_id: str


class LeaseTask(BackendTask):
    """Something to do with the node of a lease, which has this name at the cluster backend."""

    lease_id: str


class StartLeaseNode(LeaseTask):
    purpose: str
    num_devices: int
    devices: tuple[int, ...]
    device: DeviceKind | None
    excluded: tuple[str, ...]
    """Machines that it must not run on, by the names that the backend gives them."""


class StopLeaseNode(LeaseTask):
    pass


async def announce(unit: Unit, pool: Pool) -> None:
    """Announce what the locked pool has, after those were served who wait for devices of it."""
    served = leases.serve(pool)
    for lease in served.changed:
        await save(unit, pool, lease)
    failures = await store.list_newest_failures(unit.conn, pool.name, limit=machines.NUM_ANNOUNCED)
    await unit.emit(*served.events, machines.capacity(served.pool, failures))


async def save(unit: Unit, pool: Pool, lease: Lease, *events: Message, before: Lease | None = None) -> None:
    """Write the lease and emit what came of it; a node that it gets or loses is a task at the cluster backend.

    before: the lease as it was, where it may have had the state of its node already.
    """
    await store.save_lease(unit.conn, lease)
    await unit.emit(*events)
    state = lease.node and lease.node.state
    if before is not None and before.node is not None and before.node.state is state:
        return
    if state is LeaseNodeState.STARTING:
        failure = await store.find_last_failure_of_holder(unit.conn, pool.name, lease.holder)
        await unit.start_task(_start(pool, lease, failure, now=unit.now))
    elif state is LeaseNodeState.ENDING and lease.devices:
        assert lease.node is not None, "a state is of a node"
        await unit.start_task(StopLeaseNode(lease_id=lease.lease_id, name=lease.node.name, pool=pool.name))


async def lease_devices(command: LeaseDevices, unit: Unit) -> None:
    pool = await store.lock_pool(unit.conn, command.pool)
    known = await store.find_lease(unit.conn, command.lease_id)
    lease, events = leases.on_asked(command, pool, known, now=unit.now)
    await unit.emit(*events)
    if known == lease:
        return
    await store.save_lease(unit.conn, lease)
    if known is None:
        await _begin(unit, lease)


async def return_devices(command: ReturnDevices, unit: Unit) -> None:
    lease = await lock(unit, command.lease_id)
    if lease is None:
        raise Refused("unknown_lease", f"no lease {command.lease_id}", subject_id=command.lease_id)
    await _end(unit, lease, LeaseEnd.RETURNED)


async def lease_due(timer: LeaseDue, unit: Unit) -> None:
    lease = await lock(unit, timer.lease_id)
    if lease is None or lease.has_ended:
        return
    if not leases.is_over(lease, unit.now):
        await unit.set_timer(timer, at=lease.until + FENCE)
        return
    log.warning("lease expired", lease_id=lease.lease_id, holder=lease.holder, pool=lease.pool)
    await _end(unit, lease, LeaseEnd.EXPIRED)


async def lock(unit: Unit, lease_id: str) -> Lease | None:
    """Return the lease as it is once its pool is locked: whoever changes a lease has that lock."""
    known = await store.find_lease(unit.conn, lease_id)
    if known is None:
        return None
    await store.lock_pool(unit.conn, known.pool)
    return await store.find_lease(unit.conn, lease_id)


async def pool_of(unit: Unit, lease: Lease) -> Pool:
    pool = await store.lock_pool(unit.conn, lease.pool)
    assert pool is not None, "a lease has a pool"
    return pool


async def _begin(unit: Unit, lease: Lease) -> None:
    """Serve it, or say what it waits for."""
    await unit.set_timer(LeaseDue(lease_id=lease.lease_id), at=lease.until + FENCE)
    pool = await pool_of(unit, lease)
    if not any(each.lease_id == lease.lease_id for each in leases.serve(pool).changed):
        await unit.emit(leases.queued(lease, pool))
    await announce(unit, pool)


async def _end(unit: Unit, lease: Lease, reason: LeaseEnd) -> None:
    if lease.has_ended:
        return
    after = leases.on_end(lease, reason)
    await save(unit, await pool_of(unit, lease), after, leases.ended(after), before=lease)
    await announce(unit, await pool_of(unit, lease))


def _start(pool: Pool, lease: Lease, failure: Failure | None, *, now: datetime) -> StartLeaseNode:
    """`failure`: the last one of the service's nodes in the pool."""
    assert lease.node is not None, "it was given a node"
    return StartLeaseNode(
        lease_id=lease.lease_id,
        name=lease.node.name,
        pool=pool.name,
        purpose=lease.purpose,
        num_devices=lease.num_devices,
        devices=lease.devices,
        device=pool.device,
        excluded=avoided(pool, [failure] if failure and is_recent(failure, now) else [], nodes=1),
    )
