"""Leases of services: asked for, extended, given back, and over; and who waits is served whenever a pool changes."""

from pydantic import BaseModel

from schemas.node import LeaseDevices, LeaseEnd, ReturnDevices
from services.provisioner import leases, store
from services.provisioner.leases import FENCE
from services.provisioner.model import Lease, LeaseState, Pool
from shared.errors import Refused
from shared.log import get_logger
from shared.messaging.unit import Unit

log = get_logger(__name__)


class LeaseDue(BaseModel):
    """Timer: the lease may be over."""

    lease_id: str


async def announce(unit: Unit, pool: Pool) -> None:
    """Announce what the locked pool has, after those were served who wait for devices of it."""
    served = leases.serve(pool)
    for lease in served.changed:
        await store.save_lease(unit.conn, lease)
    await unit.emit(*served.events, served.pool.capacity)


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
    lease = await _lock(unit, command.lease_id)
    if lease is None:
        raise Refused("unknown_lease", f"no lease {command.lease_id}", subject_id=command.lease_id)
    await _end(unit, lease, LeaseEnd.RETURNED)


async def lease_due(timer: LeaseDue, unit: Unit) -> None:
    lease = await _lock(unit, timer.lease_id)
    if lease is None or lease.state is LeaseState.ENDED:
        return
    if not leases.is_over(lease, unit.now):
        await unit.set_timer(timer, at=lease.until + FENCE)
        return
    log.warning("lease expired", lease_id=lease.lease_id, holder=lease.holder, pool=lease.pool)
    await _end(unit, lease, LeaseEnd.EXPIRED)


async def _begin(unit: Unit, lease: Lease) -> None:
    """Serve it, or say what it waits for."""
    await unit.set_timer(LeaseDue(lease_id=lease.lease_id), at=lease.until + FENCE)
    pool = await _pool(unit, lease)
    if not any(each.lease_id == lease.lease_id for each in leases.serve(pool).changed):
        await unit.emit(leases.queued(lease, pool))
    await announce(unit, pool)


async def _end(unit: Unit, lease: Lease, reason: LeaseEnd) -> None:
    if lease.state is LeaseState.ENDED:
        return
    after = leases.on_end(lease, reason)
    await store.save_lease(unit.conn, after)
    await unit.emit(leases.ended(after))
    await announce(unit, await _pool(unit, lease))


async def _lock(unit: Unit, lease_id: str) -> Lease | None:
    """Return the lease as it is once its pool is locked: whoever changes a lease has that lock."""
    known = await store.find_lease(unit.conn, lease_id)
    if known is None:
        return None
    await store.lock_pool(unit.conn, known.pool)
    return await store.find_lease(unit.conn, lease_id)


async def _pool(unit: Unit, lease: Lease) -> Pool:
    pool = await store.lock_pool(unit.conn, lease.pool)
    assert pool is not None, "a lease has a pool"
    return pool
