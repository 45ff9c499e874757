"""Who starts next, and where: fair shares between tenants, age within one, gangs against the capacity ledger.

The tenant with the smallest share goes first: its devices / all devices / its tier's weight. Between equal shares,
and so within a tenant, the job that waits longest; a premium job counts as ten minutes older than it is.

A job that has waited for 20 minutes holds the first pool that is large enough for it against all that come after it
in this order: what becomes free there is kept until its whole gang fits.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Self

from schemas.base import DeviceKind, PriceClass
from schemas.node import PoolCapacityChanged
from schemas.specification import Tier
from services.scheduler.model import Job, Placement

WEIGHTS: Mapping[Tier, float] = {Tier.STANDARD: 1.0, Tier.PREMIUM: 2.0}
HEAD_STARTS: Mapping[Tier, timedelta] = {Tier.STANDARD: timedelta(0), Tier.PREMIUM: timedelta(minutes=10)}
"""Between equal shares."""
HOLDS_POOL_AFTER = timedelta(minutes=20)
GRANTS_OF_A_ROUND = 20
"""In one transaction: whoever waits for the ledger meanwhile is held up no longer."""
TURNED_AWAY_AT_LEAST = timedelta(seconds=1)
TURNED_AWAY_AT_MOST = timedelta(seconds=15)

PREFERENCE: Mapping[str, tuple[PriceClass, ...]] = {
    PriceClass.SPOT: (PriceClass.SPOT,),
    PriceClass.ON_DEMAND: (PriceClass.ON_DEMAND,),
    "spot-first": (PriceClass.SPOT, PriceClass.ON_DEMAND),
}


@dataclass(frozen=True)
class Booking:
    """Nodes of an attempt that has not given them back."""

    nodes: int
    since: datetime


@dataclass(frozen=True)
class Pool:
    name: str
    price_class: PriceClass
    nodes: int
    devices_per_node: int
    price_per_hour: Decimal
    changed_at: datetime
    """When PoolCapacityChanged came last."""
    device: DeviceKind | None = None
    device_memory_bytes: int | None = None
    """Of each device."""
    booked: int = 0
    """Nodes, in all."""
    bookings: tuple[Booking, ...] = ()

    @property
    def free(self) -> int:
        """A pool that shrank under its attempts has none, not less than none."""
        return max(0, self.nodes - self.booked)


@dataclass(frozen=True)
class Ledger:
    """What the pools hold. It only avoids asking in vain: the provisioner has the last word."""

    pools: tuple[Pool, ...] = ()
    devices_held: Mapping[str, int] = field(default_factory=dict)
    """Tenant -> devices of its attempts."""

    @property
    def free(self) -> int:
        """Nodes, in all pools."""
        return sum(pool.free for pool in self.pools)

    @property
    def devices(self) -> int:
        return sum(pool.nodes * pool.devices_per_node for pool in self.pools)

    def share_of(self, tenant: str) -> float:
        return self.devices_held.get(tenant, 0) / self.devices if self.devices else 0.0

    def with_booking(self, pool: Pool, candidate: "Candidate") -> Self:
        held = self.devices_held.get(candidate.tenant, 0) + candidate.nodes * pool.devices_per_node
        return replace(
            self._with_pool(replace(pool, booked=pool.booked + candidate.nodes)),
            devices_held={**self.devices_held, candidate.tenant: held},
        )

    def with_pool_held(self, pool: Pool) -> Self:
        return self._with_pool(replace(pool, booked=max(pool.booked, pool.nodes)))

    def _with_pool(self, changed: Pool) -> Self:
        pools = tuple(changed if pool.name == changed.name else pool for pool in self.pools)
        return replace(self, pools=pools)


NOTHING = Ledger()


def pool_of(fact: PoolCapacityChanged, *, now: datetime) -> Pool:
    return Pool(
        name=fact.pool,
        price_class=fact.price_class,
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
    price_class: str
    pool: str | None = None
    not_before: datetime | None = None
    turned_away: Mapping[str, datetime] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, *, queued_at: datetime) -> Self:
        wanted = job.spec.resources
        return cls(
            job_id=job.id,
            tenant=job.tenant,
            tier=job.spec.tier,
            queued_at=queued_at,
            nodes=wanted.nodes,
            devices_per_node=wanted.devices_per_node,
            price_class=wanted.price_class,
            pool=wanted.pool,
            not_before=job.not_before,
            turned_away=job.turned_away,
        )


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
        ledger, passed, grant = self._ledger, list[Candidate](), None
        while grant is None and ledger.free and self._waiting:
            candidate = self._pop_best()
            suited = suited_pools(candidate, ledger)
            pool = next((pool for pool in suited if can_start(candidate, pool, self._now)), None)
            if pool is not None:
                grant = self._book(candidate, pool)
            elif self._matters(candidate):
                passed.append(candidate)
                if holds_pool(candidate, self._now):
                    ledger = ledger.with_pool_held(suited[0])
        for candidate in passed:
            self.add(candidate)
        return grant

    def _pop_best(self) -> Candidate:
        """What a tenant got puts back the others that it has in the queue, and moves nobody forward."""
        while True:
            rank_then, candidate = heapq.heappop(self._waiting)
            if rank_then == rank(candidate, self._ledger):
                return candidate
            self.add(candidate)

    def _book(self, candidate: Candidate, pool: Pool) -> Grant:
        self._ledger = self._ledger.with_booking(pool, candidate)
        return Grant(candidate, _placement(candidate, pool))

    def _matters(self, candidate: Candidate) -> bool:
        """Whether it may still get nodes in this round, or keep others from nodes that are free."""
        suited = suited_pools(candidate, self._ledger)
        keeps_others_out = holds_pool(candidate, self._now) and bool(suited) and suited[0].free > 0
        return keeps_others_out or any(can_start(candidate, pool, self._now) for pool in suited)


def holds_pool(candidate: Candidate, now: datetime) -> bool:
    return now - candidate.queued_at >= HOLDS_POOL_AFTER


def rank(candidate: Candidate, ledger: Ledger) -> Rank:
    share = ledger.share_of(candidate.tenant) / WEIGHTS[candidate.tier]
    return share, candidate.queued_at - HEAD_STARTS[candidate.tier], candidate.job_id


def why_waiting(candidate: Candidate, ledger: Ledger, *, now: datetime) -> str:
    """One sentence for the person who asks."""
    wanted = f"{candidate.nodes} node(s) with {candidate.devices_per_node} device(s) each ({candidate.price_class})"
    if candidate.not_before is not None and is_backing_off(candidate, now):
        return f"backs off until {candidate.not_before:%H:%M:%S} UTC"
    suited = suited_pools(candidate, ledger)
    if not suited:
        return f"no pool can hold {wanted}; known: {_names(ledger.pools) or 'none'}"
    if all(_is_turned_away(candidate, pool, now) for pool in suited):
        return f"{wanted}: the engine had no capacity in {_names(suited)}, asked again soon"
    if all(pool.free < candidate.nodes for pool in suited):
        free = ", ".join(f"{pool.name} has {pool.free} of {pool.nodes} nodes free" for pool in suited)
        return f"waits for {wanted}: {free}"
    return f"its turn for {wanted}"


def suited_pools(candidate: Candidate, ledger: Ledger) -> list[Pool]:
    """Pools that could hold the whole gang were they empty: the preferred class first, then the cheapest."""
    classes = PREFERENCE[candidate.price_class]
    suited = [
        pool
        for pool in ledger.pools
        if pool.price_class in classes
        and candidate.pool in (None, pool.name)
        and pool.nodes >= candidate.nodes
        and pool.devices_per_node >= candidate.devices_per_node
    ]
    return sorted(suited, key=lambda pool: (classes.index(pool.price_class), pool.price_per_hour, pool.name))


def can_start(candidate: Candidate, pool: Pool, now: datetime) -> bool:
    return pool.free >= candidate.nodes and not _is_turned_away(candidate, pool, now)


def _is_turned_away(candidate: Candidate, pool: Pool, now: datetime) -> bool:
    """The engine had no capacity a moment ago; news of the pool shortens the wait."""
    at = candidate.turned_away.get(pool.name)
    if at is None:
        return False
    return now - at < (TURNED_AWAY_AT_LEAST if pool.changed_at > at else TURNED_AWAY_AT_MOST)


def is_backing_off(candidate: Candidate, now: datetime) -> bool:
    return candidate.not_before is not None and now < candidate.not_before


def _placement(candidate: Candidate, pool: Pool) -> Placement:
    return Placement(pool.name, pool.price_class, candidate.nodes, candidate.devices_per_node, pool.device)


def _names(pools: Sequence[Pool]) -> str:
    return ", ".join(pool.name for pool in pools)
