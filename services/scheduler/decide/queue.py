"""Who starts next, and where: fair shares between tenants, age within one, devices against the capacity ledger.

The tenant with the smallest dominant share goes first: of each type of device, what it holds / all there are, the
greatest of these / its tier's weight. Between equal shares, and so within a tenant, the job that waits longest; a
premium job counts as ten minutes older than it is.

A job that has waited for 20 minutes reserves devices of the first pool that is large enough for it, on the machines
that have room for it first, from then on. Those after it in this order start there only where they leave room: they
end before by what they state, or take devices that are spare then.

Where enough are booked by jobs that state no run time, that start is an estimate, and those that state none pass by
the same estimate: such a job runs for a third of the time that the reserving job has waited; once it has run longer,
for as long again. So the pool works while nobody can know, and after three of the longest run times nobody passes.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from schemas.numbers import plural
from schemas.placement import (
    CAPACITY_TYPES,
    Requirements,
    demand,
    is_within_limit,
    leases_in_words,
    needed_device,
    requirements,
    suits,
    taken,
    taken_per_node,
    takes,
)
from schemas.specification import Tier
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.ledger import Ledger, Pool
from services.scheduler.model import Placement

WEIGHTS: Mapping[Tier, float] = {Tier.STANDARD: 1.0, Tier.PREMIUM: 2.0}
HEAD_STARTS: Mapping[Tier, timedelta] = {Tier.STANDARD: timedelta(0), Tier.PREMIUM: timedelta(minutes=10)}
"""Between equal shares."""
RESERVES_AFTER = timedelta(minutes=20)
GRANTS_OF_A_ROUND = 10
"""Most grants in one transaction: whoever waits for the ledger meanwhile is held up no longer."""
NO_CAPACITY_AT_LEAST = timedelta(seconds=1)
NO_CAPACITY_AT_MOST = timedelta(seconds=15)


@dataclass(frozen=True)
class Grant:
    candidate: Candidate
    placement: Placement


Rank = tuple[float, datetime, str]
"""The least goes first. It ends with the job's id, so no two are equal."""


@dataclass
class _Wish:
    """What is known in a round of those who want the same devices."""

    suited: tuple[str, ...]
    """Pools that could hold them, the preferred ones first."""
    roomy: list[str]
    """Those of them with enough free where it is needed. Devices only become fewer in a round, so does this."""
    num_waiting: int = 0


class Round:
    """Who starts, best first; each grant is booked before the next is made.

    Of waiting jobs that differ in age alone the oldest will do, if the one behind it is added once it has its nodes.
    Of those who want the same devices one look at the pools is enough, and the round is over when nobody who is left
    has room anywhere.
    """

    def __init__(self, waiting: Iterable[Candidate], ledger: Ledger, *, now: datetime) -> None:
        self._ledger = ledger
        self._now = now
        self._takes_everyone = not any(pool.tenants for pool in ledger.pools)
        self._wishes: dict[tuple[Requirements, str | None], _Wish] = {}
        self._num_with_room = 0
        self._reserving: dict[str, Candidate] = {}
        """Pool -> who reserves devices of it. What is reserved is reckoned when somebody behind has room there."""
        self._unranked: list[tuple[Candidate, _Wish]] = []
        self._ranked: list[tuple[Rank, Candidate, _Wish]] = []
        for candidate in waiting:
            self.add(candidate)

    def add(self, candidate: Candidate) -> None:
        if candidate.is_backing_off(self._now):
            return
        wish = self._wish_of(candidate)
        wish.num_waiting += 1
        self._num_with_room += bool(wish.roomy)
        self._unranked.append((candidate, wish))

    def next(self) -> Grant | None:
        """Devices only become fewer in a round, so that who cannot start is not looked at again."""
        while self._num_with_room:
            candidate, wish = self._pop_best()
            if (place := self._place_for(candidate, wish)) is not None:
                return self._book(candidate, *place)
            if reserves_devices(candidate, self._now) and (first := self._first_allowed(candidate, wish)):
                self._reserving.setdefault(first, candidate)
        return None

    def has_use_for_one_like(self, candidate: Candidate) -> bool:
        """Return whether one who wants the same and came later could start in this round, or reserve devices."""
        return bool(self._wish_of(candidate).roomy) or reserves_devices(candidate, self._now)

    def _wish_of(self, candidate: Candidate) -> _Wish:
        key = (requirements(candidate.resources), None if self._takes_everyone else candidate.tenant)
        if (wish := self._wishes.get(key)) is None:
            pools = suited_pools(candidate, self._ledger)
            roomy = [pool.name for pool in pools if pool.has_room(candidate)]
            wish = self._wishes[key] = _Wish(tuple(pool.name for pool in pools), roomy)
        return wish

    def _pop_best(self) -> tuple[Candidate, _Wish]:
        """What a tenant got puts back the others that it has in the queue, and moves nobody forward."""
        self._rank_added()
        while True:
            rank_then, candidate, wish = self._ranked[0]
            if rank_then == (rank_now := rank(candidate, self._ledger)):
                heapq.heappop(self._ranked)
                wish.num_waiting -= 1
                self._num_with_room -= bool(wish.roomy)
                return candidate, wish
            heapq.heapreplace(self._ranked, (rank_now, candidate, wish))

    def _rank_added(self) -> None:
        entries = [(rank(candidate, self._ledger), candidate, wish) for candidate, wish in self._unranked]
        self._unranked.clear()
        if not self._ranked:
            self._ranked = entries
            heapq.heapify(self._ranked)
            return
        for entry in entries:
            heapq.heappush(self._ranked, entry)

    def _place_for(self, candidate: Candidate, wish: _Wish) -> tuple[Candidate, Pool] | None:
        for name in wish.roomy:
            if not self._ledger.allows(candidate, self._ledger.by_name[name]):
                continue
            pool = self._with_reservation(name)
            if sized := largest_that_starts(candidate, pool, self._ledger, self._now):
                return sized, pool
        return None

    def _first_allowed(self, candidate: Candidate, wish: _Wish) -> str | None:
        pools = self._ledger.by_name
        return next((name for name in wish.suited if self._ledger.allows(candidate, pools[name])), None)

    def _with_reservation(self, name: str) -> Pool:
        """Nothing of the pool was booked since somebody reserved devices of it: who takes them asks here first."""
        if reserving := self._reserving.get(name):
            pool = self._ledger.by_name[name]
            self._ledger = self._ledger.with_reservation(pool, reserving, self._now)
        return self._ledger.by_name[name]

    def _book(self, candidate: Candidate, sized: Candidate, pool: Pool) -> Grant:
        self._ledger = self._ledger.with_booking(pool, sized, self._now)
        self._forget_full(self._ledger.by_name[pool.name])
        return Grant(candidate, placement(sized, pool, self._now))

    def _forget_full(self, pool: Pool) -> None:
        for (asked, _), wish in self._wishes.items():
            if pool.name in wish.roomy and not pool.has_room_for(asked):
                wish.roomy.remove(pool.name)
                self._num_with_room -= 0 if wish.roomy else wish.num_waiting


def reserves_devices(candidate: Candidate, now: datetime) -> bool:
    return now - candidate.queued_at >= RESERVES_AFTER


def rank(candidate: Candidate, ledger: Ledger) -> Rank:
    share = ledger.share_of(candidate.tenant) / WEIGHTS[candidate.tier]
    return share, candidate.queued_at - HEAD_STARTS[candidate.tier], candidate.job_id


def why_waiting(candidate: Candidate, ledger: Ledger, *, now: datetime) -> str:
    """One sentence for the person who asks."""
    if candidate.not_before is not None and candidate.is_backing_off(now):
        return f"backs off until {candidate.not_before:%H:%M:%S} UTC"
    pools = [pool for pool in ledger.pools if takes(pool, candidate.tenant)]
    request = demand(candidate.resources, needed_device(candidate.resources, pools))
    suited = suited_pools(candidate, ledger)
    if not suited:
        return f"no pool can hold {request}; known: {_names(pools) or 'none'}"
    if not allowed_pools(candidate, ledger):
        held, limit = ledger.held_by(candidate.tenant), ledger.device_limits[candidate.tenant]
        if not limit:
            return f"{request}: its tenant may have none now, by its quota or for the budget of its month is used up"
        return f"{request}: its tenant has {plural(held, 'device')} of {limit} that it may have at once"
    if all(_had_no_capacity(candidate, pool, now) for pool in suited):
        return f"{request}: the engine had no capacity in {_names(suited)}, asked again soon"
    if not any(pool.has_room(candidate) for pool in suited):
        return f"waits for {request}: {', '.join(_what_is_free(candidate, pool) for pool in suited)}"
    return f"its turn for {request}"


def _what_is_free(candidate: Candidate, pool: Pool) -> str:
    leased = leases_in_words(pool.leases)
    return _counts(candidate, pool) + (f" ({leased})" if leased else "")


def _counts(candidate: Candidate, pool: Pool) -> str:
    asked = candidate.resources
    if asked.nodes > 1:
        whole = pool.count_roomy(pool.devices_per_node)
        return f"{pool.name} has {whole} of {pool.nodes} nodes wholly free"
    free = f"{pool.name} has {pool.free_devices} of {plural(pool.devices, 'device')} free"
    return (
        free
        if pool.free_devices < asked.devices_per_node
        else f"{free}, at most {pool.most_free} on one node"
    )


def suited_pools(candidate: Candidate, ledger: Ledger) -> list[Pool]:
    """Pools that could hold the whole gang were they empty: the preferred class first, then where it costs least."""
    asked = candidate.resources
    classes = CAPACITY_TYPES[asked.capacity_type]
    pools = [pool for pool in ledger.pools if takes(pool, candidate.tenant)]
    needed = needed_device(asked, pools)
    suited = [pool for pool in pools if pool.nodes >= asked.nodes and suits(asked, pool, needed)]
    return sorted(
        suited,
        key=lambda pool: (
            classes.index(pool.capacity_type),
            taken(asked, pool) * pool.price_per_hour / pool.devices_per_node,
            pool.name,
        ),
    )


def allowed_pools(candidate: Candidate, ledger: Ledger) -> list[Pool]:
    """Return the pools that suit it and of which its tenant may have as much now."""
    return [pool for pool in suited_pools(candidate, ledger) if ledger.allows(candidate, pool)]


def largest_that_starts(candidate: Candidate, pool: Pool, ledger: Ledger, now: datetime) -> Candidate | None:
    """Return the candidate with the most nodes that it may have of the pool now; None where it may have none."""
    return next((each for each in candidate.sizes if _may_have(each, pool, ledger, now)), None)


def _may_have(candidate: Candidate, pool: Pool, ledger: Ledger, now: datetime) -> bool:
    return (
        can_start(candidate, pool, now)
        and ledger.allows(candidate, pool)
        and is_within_limit(candidate.resources, pool)
    )


def can_start(candidate: Candidate, pool: Pool, now: datetime) -> bool:
    return pool.may_start(candidate, now) and not _had_no_capacity(candidate, pool, now)


def _had_no_capacity(candidate: Candidate, pool: Pool, now: datetime) -> bool:
    """The engine had no capacity a moment ago; news of the pool shortens the wait."""
    at = candidate.no_capacity_at.get(pool.name)
    if at is None:
        return False
    return now - at < (NO_CAPACITY_AT_LEAST if pool.changed_at > at else NO_CAPACITY_AT_MOST)


def placement(candidate: Candidate, pool: Pool, now: datetime) -> Placement:
    """Return where in the pool it starts, which it may."""
    asked = candidate.resources
    return Placement(
        pool.name,
        pool.capacity_type,
        asked.nodes,
        asked.devices_per_node,
        pool.device,
        machines=pool.machines_for(candidate, now),
        taken_per_node=taken_per_node(asked, pool),
    )


def _names(pools: Sequence[Pool]) -> str:
    return ", ".join(pool.name for pool in pools)
