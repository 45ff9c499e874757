"""Who starts next, and where: fair shares between tenants, age within one, gangs against the capacity ledger.

The tenant with the smallest dominant share goes first: of each type of device, what it holds / all there are, the
greatest of these / its tier's weight. Between equal shares, and so within a tenant, the job that waits longest; a
premium job counts as ten minutes older than it is.

A job that has waited for 20 minutes reserves nodes of the first pool that is large enough for it, from when enough
are free at the latest. Those after it in this order start there only where they leave room: they end before by what
they state, or take nodes that are spare then.

Where enough are booked by jobs that state no run time, that start is an estimate, and those that state none pass by
the same estimate: such a job runs for a third of the time that the reserving job has waited; once it has run longer,
for as long again. So the pool works while nobody can know, and after three of the longest run times nobody passes.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple, Self

from schemas.base import CapacityType, DeviceKind
from schemas.node import PoolCapacityChanged
from schemas.specification import Resources, Tier
from services.scheduler.model import Job, Placement

WEIGHTS: Mapping[Tier, float] = {Tier.STANDARD: 1.0, Tier.PREMIUM: 2.0}
HEAD_STARTS: Mapping[Tier, timedelta] = {Tier.STANDARD: timedelta(0), Tier.PREMIUM: timedelta(minutes=10)}
"""Between equal shares."""
RESERVES_AFTER = timedelta(minutes=20)
ESTIMATES_PER_WAIT = 3
"""A job that states no run time is taken to run for this part of the wait of the job that reserves nodes."""
GRANTS_OF_A_ROUND = 10
"""Most grants in one transaction: whoever waits for the ledger meanwhile is held up no longer."""
NO_CAPACITY_AT_LEAST = timedelta(seconds=1)
NO_CAPACITY_AT_MOST = timedelta(seconds=15)

PREFERENCE: Mapping[str, tuple[CapacityType, ...]] = {
    CapacityType.SPOT: (CapacityType.SPOT,),
    CapacityType.ON_DEMAND: (CapacityType.ON_DEMAND,),
    "spot-first": (CapacityType.SPOT, CapacityType.ON_DEMAND),
}


@dataclass(frozen=True)
class Booking:
    """Nodes of an attempt that has not given them back."""

    nodes: int
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
    """Nodes of a pool that are reserved for the first job in the order that has waited long for them."""

    nodes: int
    start: datetime | None
    """When so many are free; None where bookings do not say."""
    spare: int
    """Nodes that are free then beyond these."""
    estimate: timedelta | None = None
    """How long jobs that state nothing are taken to run, where `start` depends on it; else it holds at the latest."""

    def leaves_room(self, candidate: "Candidate", now: datetime) -> bool:
        return candidate.nodes <= self.spare or self._is_over_before(candidate, now)

    def with_booking(self, candidate: "Candidate", now: datetime) -> Self:
        if self._is_over_before(candidate, now):
            return self
        return replace(self, spare=self.spare - candidate.nodes)

    def _is_over_before(self, candidate: "Candidate", now: datetime) -> bool:
        longest = candidate.longest or self.estimate
        return longest is not None and self.start is not None and now + longest <= self.start


class DeviceType(NamedTuple):
    """What a device is, as far as the operator of its pool says: those alike count together, whatever they cost."""

    kind: DeviceKind | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Pool:
    name: str
    capacity_type: CapacityType
    nodes: int
    devices_per_node: int
    price_per_hour: Decimal
    changed_at: datetime
    """When PoolCapacityChanged came last."""
    device: DeviceKind | None = None
    device_memory_bytes: int | None = None
    """Memory of each device."""
    booked: int = 0
    """Nodes that are booked, in all."""
    bookings: tuple[Booking, ...] = ()
    reserved: Reservation | None = None

    @property
    def free(self) -> int:
        """A pool that shrank under its attempts has none, not less than none."""
        return max(0, self.nodes - self.booked)

    @cached_property
    def device_type(self) -> DeviceType:
        return DeviceType(self.device, self.device_memory_bytes)

    def with_booking(self, candidate: "Candidate", now: datetime) -> Self:
        booking = Booking(candidate.nodes, now, candidate.ends_by(now))
        return replace(
            self,
            booked=self.booked + candidate.nodes,
            bookings=(*self.bookings, booking),
            reserved=self.reserved and self.reserved.with_booking(candidate, now),
        )

    def with_reservation(self, candidate: "Candidate", now: datetime) -> Self:
        """The first one stays: whoever comes later in the order may start where it leaves room."""
        return self if self.reserved else replace(self, reserved=self._reservation(candidate, now))

    def _reservation(self, candidate: "Candidate", now: datetime) -> Reservation:
        limited = [(each.ends_by, each.nodes) for each in self.bookings if each.ends_by is not None]
        start, free = self._enough_free(candidate.nodes, limited, now)
        if start is not None:
            return Reservation(candidate.nodes, start, free - candidate.nodes)
        estimate = (now - candidate.queued_at) / ESTIMATES_PER_WAIT
        expected = [(each.expected_end(estimate, now), each.nodes) for each in self.bookings]
        start, free = self._enough_free(candidate.nodes, expected, now)
        return Reservation(candidate.nodes, start, max(0, free - candidate.nodes), estimate)

    def _enough_free(
        self, nodes: int, ends: Iterable[tuple[datetime, int]], now: datetime
    ) -> tuple[datetime | None, int]:
        """When so many nodes are free if bookings end so, and how many are free then."""
        free, start = self.nodes - self.booked, now
        for end, released in sorted(ends):
            if free >= nodes and end > start:
                break
            free, start = free + released, max(start, end)
        return (start if free >= nodes else None), free


@dataclass(frozen=True)
class Ledger:
    """What the pools hold. It only avoids asking for what is not there: the provisioner has the last word."""

    pools: tuple[Pool, ...] = ()
    devices_held: Mapping[str, Mapping[DeviceType, int]] = field(default_factory=dict)
    """Tenant -> devices of its attempts, of each type."""
    device_limits: Mapping[str, int] = field(default_factory=dict)
    """Tenant -> devices that its attempts may hold at once, where that is limited."""

    @property
    def free(self) -> int:
        """Nodes, in all pools."""
        return sum(pool.free for pool in self.pools)

    @cached_property
    def devices(self) -> Mapping[DeviceType, int]:
        """Number of all devices by type; a type of which there are none is left out."""
        devices = Counter[DeviceType]()
        for pool in self.pools:
            devices[pool.device_type] += pool.nodes * pool.devices_per_node
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

    def allows(self, candidate: "Candidate", pool: Pool) -> bool:
        """Whether its tenant may have so many nodes of the pool more, which are held with all their devices."""
        limit = self.device_limits.get(candidate.tenant)
        devices = candidate.nodes * pool.devices_per_node
        return limit is None or self.held_by(candidate.tenant) + devices <= limit

    def with_booking(self, pool: Pool, candidate: "Candidate", now: datetime) -> Self:
        held = Counter(self.devices_held.get(candidate.tenant, {}))
        held[pool.device_type] += candidate.nodes * pool.devices_per_node
        return replace(
            self._with_pool(pool.with_booking(candidate, now)),
            devices_held={**self.devices_held, candidate.tenant: held},
        )

    def with_reservation(self, pool: Pool, candidate: "Candidate", now: datetime) -> Self:
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
    )


@dataclass(frozen=True)
class Candidate:
    """What the queue must know of a waiting job."""

    job_id: str
    tenant: str
    tier: Tier
    queued_at: datetime
    nodes: int
    devices_per_node: int
    capacity_type: str
    pool: str | None = None
    not_before: datetime | None = None
    no_capacity_at: Mapping[str, datetime] = field(default_factory=dict)
    longest: timedelta | None = None
    """How long it holds its nodes at most; None: for as long as it takes."""

    def ends_by(self, start: datetime) -> datetime | None:
        return None if self.longest is None else start + self.longest

    @classmethod
    def of(cls, job: Job, *, queued_at: datetime) -> Self:
        resources = job.spec.resources
        return cls(
            job_id=job.id,
            tenant=job.tenant,
            tier=job.spec.tier,
            queued_at=queued_at,
            nodes=resources.nodes,
            devices_per_node=resources.devices_per_node,
            capacity_type=resources.capacity_type,
            pool=resources.pool,
            not_before=job.not_before,
            no_capacity_at=job.no_capacity_at,
            longest=longest_hold(resources),
        )


def longest_hold(resources: Resources) -> timedelta | None:
    """Return the run time that is stated, with the time to save a bundle after it; None where none is stated."""
    if resources.max_run_seconds is None:
        return None
    return timedelta(seconds=resources.max_run_seconds + resources.grace_seconds)


@dataclass(frozen=True)
class Grant:
    candidate: Candidate
    placement: Placement


Rank = tuple[float, datetime, str]
"""The least goes first. It ends with the job's id, so no two are equal."""


class Round:
    """Who starts, best first; each grant is booked before the next is made.

    Of waiting jobs that differ in age alone the oldest will do, if the one behind it is added once it has its nodes.
    """

    def __init__(self, waiting: Iterable[Candidate], ledger: Ledger, *, now: datetime) -> None:
        self._ledger = ledger
        self._now = now
        self._waiting: list[tuple[Rank, Candidate]] = []
        for candidate in waiting:
            self.add(candidate)

    def add(self, candidate: Candidate) -> None:
        if not is_backing_off(candidate, self._now):
            heapq.heappush(self._waiting, (rank(candidate, self._ledger), candidate))

    def next(self) -> Grant | None:
        """Nodes only become fewer in a round, so that who cannot start is not looked at again."""
        while self._ledger.free and self._waiting:
            candidate = self._pop_best()
            allowed = allowed_pools(candidate, self._ledger)
            pool = next((pool for pool in allowed if can_start(candidate, pool, self._now)), None)
            if pool is not None:
                return self._book(candidate, pool)
            if allowed and reserves_nodes(candidate, self._now):
                self._ledger = self._ledger.with_reservation(allowed[0], candidate, self._now)
        return None

    def _pop_best(self) -> Candidate:
        """What a tenant got puts back the others that it has in the queue, and moves nobody forward."""
        while True:
            rank_then, candidate = heapq.heappop(self._waiting)
            if rank_then == rank(candidate, self._ledger):
                return candidate
            self.add(candidate)

    def _book(self, candidate: Candidate, pool: Pool) -> Grant:
        self._ledger = self._ledger.with_booking(pool, candidate, self._now)
        return Grant(candidate, _placement(candidate, pool))


def reserves_nodes(candidate: Candidate, now: datetime) -> bool:
    return now - candidate.queued_at >= RESERVES_AFTER


def rank(candidate: Candidate, ledger: Ledger) -> Rank:
    share = ledger.share_of(candidate.tenant) / WEIGHTS[candidate.tier]
    return share, candidate.queued_at - HEAD_STARTS[candidate.tier], candidate.job_id


def why_waiting(candidate: Candidate, ledger: Ledger, *, now: datetime) -> str:
    """One sentence for the person who asks."""
    demand = f"{candidate.nodes} node(s) with {candidate.devices_per_node} device(s) each ({candidate.capacity_type})"
    if candidate.not_before is not None and is_backing_off(candidate, now):
        return f"backs off until {candidate.not_before:%H:%M:%S} UTC"
    suited = suited_pools(candidate, ledger)
    if not suited:
        return f"no pool can hold {demand}; known: {_names(ledger.pools) or 'none'}"
    if not allowed_pools(candidate, ledger):
        held, limit = ledger.held_by(candidate.tenant), ledger.device_limits[candidate.tenant]
        return f"{demand}: its tenant has {held} device(s) of {limit} that it may have at once"
    if all(_had_no_capacity(candidate, pool, now) for pool in suited):
        return f"{demand}: the engine had no capacity in {_names(suited)}, asked again soon"
    if all(pool.free < candidate.nodes for pool in suited):
        free = ", ".join(f"{pool.name} has {pool.free} of {pool.nodes} nodes free" for pool in suited)
        return f"waits for {demand}: {free}"
    return f"its turn for {demand}"


def suited_pools(candidate: Candidate, ledger: Ledger) -> list[Pool]:
    """Pools that could hold the whole gang were they empty: the preferred class first, then the cheapest."""
    classes = PREFERENCE[candidate.capacity_type]
    suited = [
        pool
        for pool in ledger.pools
        if pool.capacity_type in classes
        and candidate.pool in (None, pool.name)
        and pool.nodes >= candidate.nodes
        and pool.devices_per_node >= candidate.devices_per_node
    ]
    return sorted(
        suited, key=lambda pool: (classes.index(pool.capacity_type), pool.price_per_hour, pool.name)
    )


def allowed_pools(candidate: Candidate, ledger: Ledger) -> list[Pool]:
    """Return the pools that suit it and of which its tenant may have as much now."""
    return [pool for pool in suited_pools(candidate, ledger) if ledger.allows(candidate, pool)]


def can_start(candidate: Candidate, pool: Pool, now: datetime) -> bool:
    has_room = pool.reserved is None or pool.reserved.leaves_room(candidate, now)
    return has_room and pool.free >= candidate.nodes and not _had_no_capacity(candidate, pool, now)


def _had_no_capacity(candidate: Candidate, pool: Pool, now: datetime) -> bool:
    """The engine had no capacity a moment ago; news of the pool shortens the wait."""
    at = candidate.no_capacity_at.get(pool.name)
    if at is None:
        return False
    return now - at < (NO_CAPACITY_AT_LEAST if pool.changed_at > at else NO_CAPACITY_AT_MOST)


def is_backing_off(candidate: Candidate, now: datetime) -> bool:
    return candidate.not_before is not None and now < candidate.not_before


def _placement(candidate: Candidate, pool: Pool) -> Placement:
    return Placement(pool.name, pool.capacity_type, candidate.nodes, candidate.devices_per_node, pool.device)


def _names(pools: Sequence[Pool]) -> str:
    return ", ".join(pool.name for pool in pools)
