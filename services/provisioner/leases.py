"""Leases of services: who gets devices of a pool, which waits, and when one ends. Pure.

The devices are those that nodes get, on the machine where best fit leaves others whole. What is asked for first is
served first, and before attempts that are scheduled later. In a pool that is not of this machine a lease that is
served gets a node (`lease_nodes.py`), and keeps its devices until that is gone.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from schemas.base import Message
from schemas.node import DeviceLeaseEnded, DeviceLeaseQueued, DevicesLeased, LeaseDevices, LeaseEnd
from schemas.numbers import plural
from schemas.placement import best_fit, left_by_waiting
from services.provisioner.model import (
    PROGRAMS,
    Lease,
    LeaseNode,
    LeaseNodeState,
    LeaseState,
    Pool,
    lease_node_name,
)
from shared.errors import Refused

FENCE = timedelta(seconds=15)
"""Time after the end of a lease in which its holder's processes have ended themselves: they look twice a second."""


@dataclass(frozen=True)
class Served:
    """A pool after its leases were looked at."""

    pool: Pool
    changed: tuple[Lease, ...] = ()
    events: tuple[Message, ...] = ()


def on_asked(
    command: LeaseDevices, pool: Pool | None, known: Lease | None, *, now: datetime
) -> tuple[Lease, tuple[Message, ...]]:
    """Return the lease as it is now, new or extended, and what is to be announced of it at once.

    Raises: Refused where the pool cannot lease what is asked for.
    """
    if known is None:
        return _new(command, pool, now), ()
    if (known.pool, known.num_devices) != (command.pool, command.devices):
        message = (
            f"lease {known.lease_id} is of {plural(known.num_devices, 'device')} of pool {known.pool}, found "
            f"{command.devices} of {command.pool}"
        )
        raise Refused("lease_differs", message, subject_id=known.lease_id)
    if known.has_ended:
        return known, (ended(known),)
    extended = replace(known, until=max(known.until, command.until))
    return extended, (leased(extended, pool),) if pool and extended.is_at_work else ()


def serve(pool: Pool) -> Served:
    """Give leases that wait the devices that are free; end all where the pool was removed."""
    if pool.is_removed:
        return _end_all(pool)
    waiting: list[int] = []
    changed: list[Lease] = []
    for lease in pool.queued_leases:
        held = _grant(pool, lease, waiting)
        if held is None:
            waiting.append(lease.num_devices)
            continue
        pool = _with(pool, held)
        changed.append(held)
    return Served(pool, tuple(changed), tuple(leased(lease, pool) for lease in changed if lease.is_at_work))


def _end_all(pool: Pool) -> Served:
    gone = tuple(on_end(lease, LeaseEnd.POOL_REMOVED) for lease in pool.leases if not lease.has_ended)
    kept = [lease for lease in pool.leases if lease.has_ended]
    kept += [lease for lease in gone if lease.state is not LeaseState.ENDED]
    return Served(replace(pool, leases=tuple(kept)), gone, tuple(map(ended, gone)))


def is_over(lease: Lease, now: datetime) -> bool:
    """Return whether nothing of the holder can use its devices any more, if it was not extended."""
    return lease.until + FENCE <= now


def on_end(lease: Lease, reason: LeaseEnd, message: str = "") -> Lease:
    """Return the lease without its devices; where it has a node, with them until `on_released`."""
    over = replace(lease, end=reason, end_message=message)
    if over.node is None:
        return on_released(over)
    return replace(over, node=replace(over.node, state=LeaseNodeState.ENDING))


def on_released(lease: Lease) -> Lease:
    """Return the lease that is over and of whose node the backend has nothing left."""
    return replace(lease, state=LeaseState.ENDED, machine=None, devices=())


def queued(lease: Lease, pool: Pool) -> DeviceLeaseQueued:
    """Say what a lease waits for that was not served at once."""
    place = f"{plural(lease.num_devices, 'device')} of one machine of pool {pool.name}"
    return waits(lease, f"{place}: {_holders(pool)}")


def waits(lease: Lease, waiting_for: str) -> DeviceLeaseQueued:
    return DeviceLeaseQueued(
        lease_id=lease.lease_id,
        holder=lease.holder,
        purpose=lease.purpose,
        pool=lease.pool,
        devices=lease.num_devices,
        waiting_for=waiting_for,
    )


def _holders(pool: Pool) -> str:
    held = Counter({"jobs": sum(map(len, pool.leased.values()))})
    for each in pool.leases:
        if each.state is LeaseState.HELD:
            held["jobs"] -= each.num_devices
            held[each.purpose] += each.num_devices
    holders = ", ".join(f"{count} held by {purpose}" for purpose, count in held.items() if count > 0)
    return holders or "none is there"


def leased(lease: Lease, pool: Pool) -> DevicesLeased:
    assert lease.machine is not None, f"lease {lease.lease_id} has no devices"
    return DevicesLeased(
        lease_id=lease.lease_id,
        holder=lease.holder,
        purpose=lease.purpose,
        pool=lease.pool,
        machine=lease.machine,
        devices=lease.devices,
        device=pool.device,
        until=lease.until,
        node=lease.node.leased if lease.node else None,
    )


def _new(command: LeaseDevices, pool: Pool | None, now: datetime) -> Lease:
    if (reason := _why_not(command, pool, now)) is not None:
        code, message = reason
        raise Refused(code, message, subject_id=command.lease_id)
    return Lease(
        command.lease_id,
        command.holder,
        command.purpose,
        command.pool,
        command.devices,
        asked_at=now,
        until=command.until,
    )


def _why_not(command: LeaseDevices, pool: Pool | None, now: datetime) -> tuple[str, str] | None:
    if pool is None or pool.is_removed:
        return "unknown_pool", f"no pool {command.pool}"
    if not pool.is_local and not (command.has_node and command.purpose in PROGRAMS):
        where = f"pool {pool.name} is of the backend {pool.backend}"
        return "not_local", f"{where}, expected one of the provisioner's machine, where {command.holder} runs"
    if command.devices > pool.devices_per_node:
        asked = f"{command.devices} devices of one machine asked"
        return "too_many_devices", f"{asked}, a machine of pool {pool.name} has {pool.devices_per_node}"
    if command.until <= now:
        return (
            "too_late",
            f"lease {command.lease_id} ended at {command.until:%H:%M:%S} UTC, before it was read",
        )
    return None


def _grant(pool: Pool, lease: Lease, waiting: Sequence[int]) -> Lease | None:
    """Return the lease with its devices, beside what those in front of it wait for; None where there is no room."""
    free = left_by_waiting(pool.free, waiting)
    machines = best_fit(free, nodes=1, devices=lease.num_devices)
    if machines is None:
        return None
    devices = tuple(pool.free_on(machines[0])[: lease.num_devices])
    node = None if pool.is_local else LeaseNode(lease_node_name(lease.lease_id))
    return replace(lease, state=LeaseState.HELD, machine=machines[0], devices=devices, node=node)


def _with(pool: Pool, held: Lease) -> Pool:
    assert held.machine is not None, "a lease that is held has a machine"
    devices = pool.leased.get(held.machine, frozenset()) | {*held.devices}
    leases = tuple(held if each.lease_id == held.lease_id else each for each in pool.leases)
    return replace(pool, leased={**pool.leased, held.machine: devices}, leases=leases)


def ended(lease: Lease) -> DeviceLeaseEnded:
    assert lease.end is not None, f"lease {lease.lease_id} has not ended"
    return DeviceLeaseEnded(
        lease_id=lease.lease_id,
        holder=lease.holder,
        purpose=lease.purpose,
        pool=lease.pool,
        reason=lease.end,
        message=lease.end_message,
    )
