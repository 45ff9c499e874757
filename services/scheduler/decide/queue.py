"""Who starts next, and where: priority, fair share, gangs against the capacity ledger.

priority = tier (standard 0, premium 1) + waiting time / 10 min - the tenant's share of all devices (0..1)

Age has no bound, so whoever has waited for 20 minutes outranks every newcomer. From then on it also holds the
first pool that is large enough for it: what becomes free there is kept until its whole gang fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Self

from schemas.base import PriceClass
from schemas.node import PoolCapacityChanged
from schemas.specification import Tier
from services.scheduler.model import Job, Placement

TIER_POINTS: Mapping[Tier, float] = {Tier.STANDARD: 0.0, Tier.PREMIUM: 1.0}
ONE_POINT_OF_AGE = timedelta(minutes=10)
HOLDS_POOL_AFTER = timedelta(minutes=20)
GRANTS_OF_A_ROUND = 50
TURNED_AWAY_AT_LEAST = timedelta(seconds=1)
TURNED_AWAY_AT_MOST = timedelta(seconds=15)

PREFERENCE: Mapping[str, tuple[PriceClass, ...]] = {
    PriceClass.SPOT: (PriceClass.SPOT,),
    PriceClass.ON_DEMAND: (PriceClass.ON_DEMAND,),
    "spot-first": (PriceClass.SPOT, PriceClass.ON_DEMAND),
}


@dataclass(frozen=True)
class Pool:
    name: str
    price_class: PriceClass
    nodes: int
    devices_per_node: int
    price_per_hour: Decimal
    changed_at: datetime
    """When PoolCapacityChanged came last."""
    booked: int = 0
    """Nodes of attempts that have not given them back."""

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
        return min(1.0, self.devices_held.get(tenant, 0) / self.devices) if self.devices else 0.0

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
    job_id: str
    placement: Placement


def grants(waiting: Sequence[Candidate], ledger: Ledger, *, now: datetime) -> tuple[Grant, ...]:
    """Who starts now, best first, up to GRANTS_OF_A_ROUND. Each grant is booked before the next is made."""
    made: list[Grant] = []
    left = [candidate for candidate in waiting if not _is_backing_off(candidate, now)]
    while len(made) < GRANTS_OF_A_ROUND and (found := _next_grant(left, ledger, now)):
        candidate, pool = found
        made.append(Grant(candidate.job_id, _placement(candidate, pool)))
        ledger = ledger.with_booking(pool, candidate)
        left.remove(candidate)
    return tuple(made)


def priority(candidate: Candidate, ledger: Ledger, *, now: datetime) -> float:
    age = (now - candidate.queued_at) / ONE_POINT_OF_AGE
    return TIER_POINTS[candidate.tier] + age - ledger.share_of(candidate.tenant)


def why_waiting(candidate: Candidate, ledger: Ledger, *, now: datetime) -> str:
    """One sentence for the person who asks."""
    wanted = f"{candidate.nodes} node(s) with {candidate.devices_per_node} device(s) each ({candidate.price_class})"
    if candidate.not_before is not None and _is_backing_off(candidate, now):
        return f"backs off until {candidate.not_before:%H:%M:%S} UTC"
    suited = _suited_pools(candidate, ledger)
    if not suited:
        return f"no pool can hold {wanted}; known: {_names(ledger.pools) or 'none'}"
    if all(_is_turned_away(candidate, pool, now) for pool in suited):
        return f"{wanted}: the engine had no capacity in {_names(suited)}, asked again soon"
    if all(pool.free < candidate.nodes for pool in suited):
        free = ", ".join(f"{pool.name} has {pool.free} of {pool.nodes} nodes free" for pool in suited)
        return f"waits for {wanted}: {free}"
    return f"its turn for {wanted}"


def _next_grant(waiting: Sequence[Candidate], ledger: Ledger, now: datetime) -> tuple[Candidate, Pool] | None:
    for candidate in sorted(waiting, key=lambda each: _rank(each, ledger, now)):
        suited = _suited_pools(candidate, ledger)
        pool = next((pool for pool in suited if _takes(pool, candidate, now)), None)
        if pool is not None:
            return candidate, pool
        if suited and now - candidate.queued_at >= HOLDS_POOL_AFTER:
            ledger = ledger.with_pool_held(suited[0])
    return None


def _rank(candidate: Candidate, ledger: Ledger, now: datetime) -> tuple[float, datetime, str]:
    return -priority(candidate, ledger, now=now), candidate.queued_at, candidate.job_id


def _suited_pools(candidate: Candidate, ledger: Ledger) -> list[Pool]:
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


def _takes(pool: Pool, candidate: Candidate, now: datetime) -> bool:
    return pool.free >= candidate.nodes and not _is_turned_away(candidate, pool, now)


def _is_turned_away(candidate: Candidate, pool: Pool, now: datetime) -> bool:
    """The engine had no capacity a moment ago; news of the pool shortens the wait."""
    at = candidate.turned_away.get(pool.name)
    if at is None:
        return False
    return now - at < (TURNED_AWAY_AT_LEAST if pool.changed_at > at else TURNED_AWAY_AT_MOST)


def _is_backing_off(candidate: Candidate, now: datetime) -> bool:
    return candidate.not_before is not None and now < candidate.not_before


def _placement(candidate: Candidate, pool: Pool) -> Placement:
    return Placement(pool.name, pool.price_class, candidate.nodes, candidate.devices_per_node)


def _names(pools: Sequence[Pool]) -> str:
    return ", ".join(pool.name for pool in pools)
