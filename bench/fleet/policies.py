"""Who starts next: ours by the scheduler's own functions, first come first served, and quotas with borrowing."""

import heapq
import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from schemas.placement import Requirements, requirements
from schemas.specification import Tier
from services.scheduler.decide import queue
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.ledger import Ledger, Pool
from services.scheduler.model import Placement

Start = tuple[Candidate, Placement]
Age = tuple[datetime, str]


def age(candidate: Candidate) -> Age:
    return candidate.queued_at, candidate.job_id


class Kinds:
    """Waiting jobs by what makes them alike, the oldest of each first: how the scheduler reads its queue."""

    def __init__(self) -> None:
        self._jobs: dict[object, list[tuple[Age, Candidate]]] = defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    @staticmethod
    def of(candidate: Candidate) -> object:
        """As the column `kind` of the scheduler's table: run times within a factor of two are alike."""
        stated = candidate.resources.max_run_seconds
        longest = stated and math.ceil(math.log2(stated))
        refused = candidate.job_id if candidate.no_capacity_at else ""
        return candidate.tenant, candidate.tier, requirements(candidate.resources), longest, refused

    def add(self, candidate: Candidate) -> None:
        insort(self._jobs[self.of(candidate)], (age(candidate), candidate), key=lambda each: each[0])

    def remove(self, candidate: Candidate) -> None:
        kind = self.of(candidate)
        jobs = self._jobs[kind]
        del jobs[next(index for index, (_, each) in enumerate(jobs) if each.job_id == candidate.job_id)]
        if not jobs:
            del self._jobs[kind]

    def oldest(self) -> list[Candidate]:
        return [jobs[0][1] for jobs in self._jobs.values()]

    def behind(self, candidate: Candidate) -> Candidate | None:
        """Return the next of its kind."""
        jobs = self._jobs.get(self.of(candidate), [])
        return next((each for at, each in jobs if at > age(candidate)), None)


class Ours:
    """Production's: `queue.Round`, as the scheduler's handler calls it."""

    def __init__(self) -> None:
        self._kinds = Kinds()

    def add(self, candidate: Candidate) -> None:
        self._kinds.add(candidate)

    def remove(self, candidate: Candidate) -> None:
        self._kinds.remove(candidate)

    @property
    def is_waited_for(self) -> bool:
        return bool(self._kinds)

    def starts(self, ledger: Ledger, now: datetime) -> Iterable[Start]:
        if not ledger.free_devices:
            return
        grants = queue.Round(self._kinds.oldest(), ledger, now=now)
        granted: list[Start] = []
        while len(granted) < queue.GRANTS_OF_A_ROUND and (grant := grants.next()):
            granted.append((grant.candidate, grant.placement))
            if behind := self._kinds.behind(grant.candidate):
                grants.add(behind)
        yield from granted


class Fifo:
    """The oldest job starts next; nobody passes it in a pool that would do for it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Age, Candidate]] = []
        self._suited: dict[object, tuple[str, ...]] = {}

    def add(self, candidate: Candidate) -> None:
        insort(self._waiting, (age(candidate), candidate), key=lambda each: each[0])

    def remove(self, candidate: Candidate) -> None:
        index = next(i for i, (_, each) in enumerate(self._waiting) if each.job_id == candidate.job_id)
        del self._waiting[index]

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def starts(self, ledger: Ledger, now: datetime) -> Iterator[Start]:
        open_pools = {pool.name for pool in ledger.pools}
        granted: list[Start] = []
        for _, candidate in self._waiting:
            names = [name for name in suited(self._suited, candidate, ledger) if name in open_pools]
            for name in names:
                pool = ledger.by_name[name]
                if queue.can_start(candidate, pool, now):
                    granted.append((candidate, queue.placement(candidate, pool, now)))
                    ledger = ledger.with_booking(pool, candidate, now)
                    break
            else:
                open_pools -= {*names}
            if not open_pools or len(granted) == queue.GRANTS_OF_A_ROUND:
                break
        yield from granted


class Quotas:
    """Quotas with borrowing and priorities, as Kueue admits by default: no preemption, BestEffortFIFO.

    Each tenant has a nominal quota, its weight's part of the fleet, and all borrow in one cohort what others do not
    use. Of the tenants' jobs those go first with which their tenant does not borrow, then those of a higher priority,
    then the oldest. Who does not fit is passed.
    """

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._kinds = Kinds()
        self._suited: dict[object, tuple[str, ...]] = {}
        whole = sum(queue.WEIGHTS[tier] for tier in tiers.values())
        self._parts = {tenant: queue.WEIGHTS[tier] / whole for tenant, tier in tiers.items()}

    def add(self, candidate: Candidate) -> None:
        self._kinds.add(candidate)

    def remove(self, candidate: Candidate) -> None:
        self._kinds.remove(candidate)

    @property
    def is_waited_for(self) -> bool:
        return bool(self._kinds)

    def starts(self, ledger: Ledger, now: datetime) -> Iterator[Start]:
        devices = sum(pool.devices for pool in ledger.pools)
        full = set[tuple[Requirements, str]]()
        heads = [(self._rank(each, ledger, devices), each) for each in self._kinds.oldest()]
        heapq.heapify(heads)
        granted: list[Start] = []
        while heads and ledger.free_devices and len(granted) < queue.GRANTS_OF_A_ROUND:
            rank_then, candidate = heapq.heappop(heads)
            if rank_then != (rank_now := self._rank(candidate, ledger, devices)):
                heapq.heappush(heads, (rank_now, candidate))
                continue
            pool = self._with_room(candidate, ledger, full, now)
            if pool is None:
                continue
            granted.append((candidate, queue.placement(candidate, pool, now)))
            ledger = ledger.with_booking(pool, candidate, now)
            if behind := self._kinds.behind(candidate):
                heapq.heappush(heads, (self._rank(behind, ledger, devices), behind))
        yield from granted

    def _rank(self, candidate: Candidate, ledger: Ledger, devices: int) -> tuple[bool, bool, Age]:
        would_hold = ledger.held_by(candidate.tenant) + candidate.resources.num_devices
        borrows = would_hold > self._parts[candidate.tenant] * devices
        return borrows, candidate.tier is not Tier.PREMIUM, age(candidate)

    def _with_room(
        self, candidate: Candidate, ledger: Ledger, full: set[tuple[Requirements, str]], now: datetime
    ) -> Pool | None:
        """Devices only become fewer here: what was full for those who want the same stays so."""
        asked = requirements(candidate.resources)
        for name in suited(self._suited, candidate, ledger):
            if (asked, name) in full:
                continue
            pool = ledger.by_name[name]
            if not pool.has_room(candidate):
                full.add((asked, name))
            elif queue.can_start(candidate, pool, now):
                return pool
        return None


def suited(known: dict[object, tuple[str, ...]], candidate: Candidate, ledger: Ledger) -> tuple[str, ...]:
    """Return the pools that could hold it, as the scheduler prefers them. While machines are away a pool may be too
    small for a moment; then it has no room."""
    asked = requirements(candidate.resources)
    if asked not in known:
        known[asked] = tuple(pool.name for pool in queue.suited_pools(candidate, ledger))
    return known[asked]
