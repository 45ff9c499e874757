"""The capacity ledger: the devices of each machine of each pool, who holds them, and what is reserved.

It only avoids asking for what is not there: the provisioner has the last word.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple, Self

from schemas.base import CapacityType, DeviceKind
from schemas.node import LeasedDevices, PoolCapacityChanged
from schemas.placement import Gang, best_fit, free_devices, left_by_waiting, size, taken, taken_per_node
from services.scheduler.decide.candidate import Candidate

ESTIMATES_PER_WAIT = 3
"""A job that states no run time is taken to run for this part of the wait of the job that reserves devices."""

Free = Mapping[int, int]
"""Machine -> devices free on it, of the machines that take work."""


@dataclass(frozen=True)
class Booking:
    """Devices of an attempt that has not given its nodes back."""

    machines: tuple[int, ...]
    devices: int
    """Devices on each of its machines."""
    since: datetime
    ends_by: datetime | None = None
    """Latest end; None: it may run for as long as it takes."""

    def expected_end(self, estimate: timedelta, now: datetime) -> datetime:
        """What has run for longer than the estimate is taken to run for as long again."""
        if self.ends_by is not None:
            return self.ends_by
        elapsed = now - self.since
        return self.since + estimate if elapsed < estimate else now + elapsed

    @property
    def longest(self) -> timedelta | None:
        return None if self.ends_by is None else self.ends_by - self.since


@dataclass(frozen=True)
class Reservation:
    """What of a pool is reserved for the first job in the order that has waited long for it."""

    job: str
    """Size of the job, in words."""
    start: datetime | None
    """When it has room; None where bookings do not say."""
    spare: Free
    """Devices that it leaves to others for as long as they take, on each machine that it waits for."""
    estimate: timedelta | None = None
    """How long jobs that state nothing are taken to run, where `start` depends on it; else it holds at the latest."""

    def beside(self, free: Free) -> Free:
        """Return what of the free devices it leaves to those that are not over before it starts."""
        return {machine: min(left, self.spare.get(machine, left)) for machine, left in free.items()}

    def with_booking(self, booking: Booking) -> Self:
        less = {
            machine: self.spare[machine] - booking.devices
            for machine in booking.machines
            if machine in self.spare
        }
        return replace(self, spare={**self.spare, **less})

    def is_after(self, candidate: Candidate, now: datetime) -> bool:
        """Return whether the candidate, started now, is over before."""
        longest = candidate.longest or self.estimate
        return longest is not None and self.start is not None and now + longest <= self.start


class DeviceType(NamedTuple):
    """What a device is, as far as the operator of its pool says: those alike count together, whatever they cost."""

    kind: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Pool:
    name: str
    capacity_type: CapacityType
    nodes: int
    devices_per_node: int
    price_per_hour: Decimal
    """Price of a node with all its devices."""
    changed_at: datetime
    """When PoolCapacityChanged came last."""
    device: DeviceKind | None = None
    device_memory_bytes: int | None = None
    """Memory of each device."""
    accelerator: str | None = None
    drained: tuple[int, ...] = ()
    """Machines that take no work and are not among the nodes."""
    max_devices_per_job: int | None = None
    tenants: tuple[str, ...] = ()
    """Tenants whose jobs it takes; none: every tenant's."""
    is_removed: bool = False
    leases: tuple[LeasedDevices, ...] = ()
    """What services have leased of it, or wait for: they go before jobs."""
    free: Free = field(default_factory=dict)
    bookings: tuple[Booking, ...] = ()
    reserved: Reservation | None = None

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @cached_property
    def device_type(self) -> DeviceType:
        return DeviceType(self.accelerator or self.device, self.device_memory_bytes)

    @cached_property
    def free_devices(self) -> int:
        return sum(self.free.values())

    @cached_property
    def _levels(self) -> Counter[int]:
        """Free devices of a machine -> number of such machines."""
        return Counter(self.free.values())

    @cached_property
    def _free_beside(self) -> Free:
        return self.reserved.beside(self.free) if self.reserved else self.free

    @cached_property
    def _levels_beside(self) -> Counter[int]:
        return Counter(self._free_beside.values()) if self.reserved else self._levels

    @property
    def most_free(self) -> int:
        """Devices of the machine that has most of them free."""
        return max(self._levels, default=0)

    def has_room(self, candidate: Candidate) -> bool:
        """Return whether enough devices are free where it needs them, reserved or not."""
        return self.has_room_for(candidate.resources)

    def has_room_for(self, asked: Gang) -> bool:
        return self._holds(self._levels, asked)

    def may_start(self, candidate: Candidate, now: datetime) -> bool:
        levels = self._levels_beside if self._is_held_up(candidate, now) else self._levels
        return self._holds(levels, candidate.resources)

    def machines_for(self, candidate: Candidate, now: datetime) -> tuple[int, ...]:
        """Return the machines that the candidate gets, one for each node; it may start."""
        free = self._free_beside if self._is_held_up(candidate, now) else self.free
        asked = candidate.resources
        machines = best_fit(free, nodes=asked.nodes, devices=taken_per_node(asked, self))
        assert machines is not None, f"pool {self.name} has no room for job {candidate.job_id}"
        return machines

    def count_roomy(self, devices: int) -> int:
        """Return how many machines have so many devices free."""
        return sum(count for level, count in self._levels.items() if level >= devices)

    def with_bookings(self, bookings: Iterable[Booking]) -> Self:
        """Return the pool with these bookings and no others, beside its leases."""
        bookings, held = tuple(bookings), Counter[int]()
        for booking in bookings:
            for machine in booking.machines:
                held[machine] += booking.devices
        for lease in self.leases:
            if lease.machine is not None:
                held[lease.machine] += lease.devices
        free = free_devices(self, drained=self.drained, held=held)
        waiting = (lease.devices for lease in self.leases if lease.machine is None)
        return replace(self, free=left_by_waiting(free, waiting), bookings=bookings)

    def with_booking(self, candidate: Candidate, now: datetime) -> Self:
        booking = Booking(
            machines=self.machines_for(candidate, now),
            devices=taken_per_node(candidate.resources, self),
            since=now,
            ends_by=candidate.ends_by(now),
        )
        less = {machine: self.free[machine] - booking.devices for machine in booking.machines}
        held_up = self._is_held_up(candidate, now)
        return replace(
            self,
            free={**self.free, **less},
            bookings=(*self.bookings, booking),
            reserved=self.reserved.with_booking(booking) if self.reserved and held_up else self.reserved,
        )

    def with_reservation(self, candidate: Candidate, now: datetime) -> Self:
        """The first one stays: whoever comes later in the order may start where it leaves room."""
        return self if self.reserved else replace(self, reserved=self._reservation(candidate, now))

    def _holds(self, levels: Counter[int], asked: Gang) -> bool:
        devices = taken_per_node(asked, self)
        return sum(count for level, count in levels.items() if level >= devices) >= asked.nodes

    def _is_held_up(self, candidate: Candidate, now: datetime) -> bool:
        return self.reserved is not None and not self.reserved.is_after(candidate, now)

    def _reservation(self, candidate: Candidate, now: datetime) -> Reservation:
        asked = candidate.resources
        devices = taken_per_node(asked, self)
        limited = [(each.ends_by, each) for each in self.bookings if each.ends_by is not None]
        start, free = self._room_by(asked.nodes, devices, limited, now)
        estimate = None
        if start is None:
            estimate = (now - candidate.queued_at) / ESTIMATES_PER_WAIT
            expected = [(each.expected_end(estimate, now), each) for each in self.bookings]
            start, free = self._room_by(asked.nodes, devices, expected, now)
        spare = dict.fromkeys(self.free, 0) if start is None else self._spare(asked.nodes, devices, free)
        return Reservation(size(asked), start, spare, estimate)

    def _room_by(
        self, nodes: int, devices: int, ends: Iterable[tuple[datetime, Booking]], now: datetime
    ) -> tuple[datetime | None, Free]:
        """When so many machines have so many devices free if bookings end so, and what is free then."""
        free, start, roomy = dict(self.free), now, self.count_roomy(devices)
        for end, booking in sorted(ends, key=lambda each: each[0]):
            if roomy >= nodes and end > start:
                break
            start = max(start, end)
            for machine in free.keys() & booking.machines:
                before = free[machine]
                free[machine] = min(self.devices_per_node, before + booking.devices)
                roomy += before < devices <= free[machine]
        return (start if roomy >= nodes else None), free

    def _spare(self, nodes: int, devices: int, free: Free) -> Free:
        """Of the machines with room then, those are waited for that have least free now: others keep the rest."""
        roomy = [machine for machine, left in free.items() if left >= devices]
        chosen = sorted(roomy, key=lambda machine: (self.free[machine], free[machine], machine))[:nodes]
        return {machine: free[machine] - devices for machine in chosen}


@dataclass(frozen=True)
class Ledger:
    pools: tuple[Pool, ...] = ()
    devices_held: Mapping[str, Mapping[DeviceType, int]] = field(default_factory=dict)
    """Tenant -> devices of its attempts, of each type."""
    device_limits: Mapping[str, int] = field(default_factory=dict)
    """Tenant -> devices that its attempts may hold at once, where that is limited."""

    @property
    def free_devices(self) -> int:
        """Number of free devices in all pools."""
        return sum(pool.free_devices for pool in self.pools)

    @cached_property
    def by_name(self) -> Mapping[str, Pool]:
        return {pool.name: pool for pool in self.pools}

    @cached_property
    def devices(self) -> Mapping[DeviceType, int]:
        """Number of all devices by type; a type of which there are none is left out."""
        devices = Counter[DeviceType]()
        for pool in self.pools:
            devices[pool.device_type] += pool.devices
        return +devices

    def share_of(self, tenant: str) -> float:
        """Return the tenant's dominant share: the greatest of its parts of each type."""
        held, devices = self.devices_held.get(tenant), self.devices
        if not held:
            return 0.0
        return max([count / devices[each] for each, count in held.items() if each in devices], default=0.0)

    def dominant_type_of(self, tenant: str) -> DeviceType | None:
        """Return the type that its dominant share is of; None where it has nothing."""
        held, devices = self.devices_held.get(tenant, {}), self.devices
        return max(filter(held.get, devices), key=lambda each: held[each] / devices[each], default=None)

    def held_by(self, tenant: str) -> int:
        """Devices of all types."""
        return sum(self.devices_held.get(tenant, {}).values())

    def allows(self, candidate: Candidate, pool: Pool) -> bool:
        """Whether its tenant may have so many devices of the pool more."""
        limit = self.device_limits.get(candidate.tenant)
        return limit is None or self.held_by(candidate.tenant) + taken(candidate.resources, pool) <= limit

    def with_booking(self, pool: Pool, candidate: Candidate, now: datetime) -> Self:
        held = Counter(self.devices_held.get(candidate.tenant, {}))
        held[pool.device_type] += taken(candidate.resources, pool)
        return replace(
            self._with_pool(pool.with_booking(candidate, now)),
            devices_held={**self.devices_held, candidate.tenant: held},
        )

    def without_booking(self, pool: Pool, tenant: str, booking: Booking) -> Self:
        """Return the ledger as it will be when the tenant has given back what it booked."""
        left = list(pool.bookings)
        left.remove(booking)
        held = Counter(self.devices_held.get(tenant, {}))
        held[pool.device_type] -= len(booking.machines) * booking.devices
        return replace(
            self._with_pool(pool.with_bookings(left)),
            devices_held={**self.devices_held, tenant: held},
        )

    def with_reservation(self, pool: Pool, candidate: Candidate, now: datetime) -> Self:
        return self._with_pool(pool.with_reservation(candidate, now))

    def _with_pool(self, changed: Pool) -> Self:
        pools = tuple(changed if pool.name == changed.name else pool for pool in self.pools)
        return replace(self, pools=pools)


NOTHING = Ledger()


def pool_of(fact: PoolCapacityChanged, *, now: datetime) -> Pool:
    return Pool(
        name=fact.pool,
        capacity_type=fact.capacity_type,
        nodes=fact.nodes,
        devices_per_node=fact.devices_per_node,
        price_per_hour=fact.price_per_hour,
        changed_at=now,
        device=fact.device,
        device_memory_bytes=fact.device_memory_bytes,
        accelerator=fact.accelerator,
        drained=fact.drained,
        max_devices_per_job=fact.max_devices_per_job,
        tenants=fact.tenants,
        is_removed=fact.is_removed,
        leases=fact.leases,
    )
