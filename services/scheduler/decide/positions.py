"""Positions in the queue: the place of each queued job in the order, why it has not started, and when it may.

The order is the one in which devices would be handed out if enough of them were free now. Starts are estimated by
giving each job in that order the devices that are free first; all run for as long as jobs ran lately. Behind the
first 1,000 the queue is taken to continue at their pace, so that a long one costs little more.
"""

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from schemas.job import QueuePositionChanged, WaitReason, waits_unreported
from schemas.numbers import plural
from schemas.placement import taken, taken_per_node
from schemas.specification import Tier
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.ledger import DeviceType, Ledger, Pool, Reservation
from services.scheduler.decide.queue import (
    HEAD_STARTS,
    Rank,
    allowed_pools,
    can_start,
    largest_that_starts,
    rank,
    reserves_devices,
    suited_pools,
    why_waiting,
)

MAX_CHANGES = 100
"""Most changes of one look, the front of the queue first: each that is emitted costs a message."""
EXACT_UP_TO = 10
LOOKED_AT = 1_000
"""Jobs in front of which each is looked at alone."""
FAR_BEHIND = f"more than {LOOKED_AT:,} jobs are in front of it"
NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class QueueEntry:
    candidate: Candidate
    position: int | None
    reason: WaitReason
    waiting_for: str
    starts_at: datetime | None

    @property
    def shown_position(self) -> int | None:
        return None if self.position is None else rounded(self.position)

    def fact(self) -> QueuePositionChanged:
        return QueuePositionChanged(
            job_id=self.candidate.job_id,
            tenant=self.candidate.tenant,
            position=self.shown_position,
            reason=self.reason,
            waiting_for=self.waiting_for,
            estimated_start=self.starts_at,
        )


def queue_entries(
    waiting: Iterable[Candidate], ledger: Ledger, *, now: datetime, run_time: timedelta | None
) -> Iterator[QueueEntry]:
    """Yield all that wait, first those in the order. `run_time`: how long jobs ran lately, where that is known."""
    line, outside = list[tuple[Candidate, Pool]](), list[Candidate]()
    first_pools: dict[object, Pool | None] = {}
    all_take_everyone = not any(pool.tenants for pool in ledger.pools)
    for candidate in waiting:
        is_like_others = candidate.tenant not in ledger.device_limits and all_take_everyone
        wish = (candidate.resources, None if is_like_others else candidate.tenant)
        if wish not in first_pools:
            first_pools[wish] = next(iter(allowed_pools(candidate, ledger)), None)
        if (pool := first_pools[wish]) and not candidate.is_backing_off(now):
            line.append((candidate, pool))
        else:
            outside.append(candidate)
    walk = _Walk(ledger, now, run_time)
    for position, candidate in enumerate(in_order(line, ledger), 1):
        is_near = position <= LOOKED_AT
        yield walk.near(candidate, position) if is_near else walk.far_behind(candidate, position)
    for candidate in outside:
        reason = _why_outside(candidate, ledger, now)
        yield QueueEntry(candidate, None, reason, why_waiting(candidate, ledger, now=now), None)


def _why_outside(candidate: Candidate, ledger: Ledger, now: datetime) -> WaitReason:
    if candidate.is_backing_off(now):
        return WaitReason.NOT_BEFORE
    return WaitReason.QUOTA if suited_pools(candidate, ledger) else WaitReason.NO_POOL


def in_order(waiting: Iterable[tuple[Candidate, Pool]], ledger: Ledger) -> Iterator[Candidate]:
    """Order jobs as devices are handed out: what a tenant gets in a pool counts for its share before the next."""
    queues: dict[tuple[str, Tier], deque[tuple[Candidate, Pool]]] = {}
    for candidate, pool in sorted(waiting, key=lambda each: (each[0].queued_at, each[0].job_id)):
        queues.setdefault((candidate.tenant, candidate.tier), deque()).append((candidate, pool))
    held = defaultdict[str, Counter[DeviceType]](Counter)
    held.update((tenant, Counter(devices)) for tenant, devices in ledger.devices_held.items())
    ledger = replace(ledger, devices_held=held)
    heads = [_head(queue, ledger) for queue in queues.values()]
    heapq.heapify(heads)
    while heads:
        rank_then, candidate, pool = heads[0]
        if (rank_now := rank(candidate, ledger)) != rank_then:
            heapq.heapreplace(heads, (rank_now, candidate, pool))
            continue
        held[candidate.tenant][pool.device_type] += taken(candidate.resources, pool)
        queue = queues[candidate.tenant, candidate.tier]
        queue.popleft()
        if queue:
            heapq.heapreplace(heads, _head(queue, ledger))
        else:
            heapq.heappop(heads)
        yield candidate


def _head(queue: deque[tuple[Candidate, Pool]], ledger: Ledger) -> tuple[Rank, Candidate, Pool]:
    candidate, pool = queue[0]
    return rank(candidate, ledger), candidate, pool


def rounded(position: int) -> int:
    if position <= EXACT_UP_TO:
        return position
    step: int = 10 ** (len(str(position)) - 1)
    return -(-position // step) * step


def changes(
    latest: Iterable[QueueEntry], announced: Mapping[str, QueuePositionChanged], *, now: datetime
) -> list[QueuePositionChanged]:
    """Return what is worth emitting of the jobs' places, the front of the queue first."""
    facts: list[QueuePositionChanged] = []
    for entry in latest:
        if _differs(entry, announced.get(entry.candidate.job_id), now):
            facts.append(entry.fact())
            if len(facts) == MAX_CHANGES:
                break
    return facts


def _differs(entry: QueueEntry, before: QueuePositionChanged | None, now: datetime) -> bool:
    if before is None or (entry.shown_position, entry.reason) != (before.position, before.reason):
        return True
    expected, estimated = before.estimated_start, entry.starts_at
    if expected is None or estimated is None:
        return expected != estimated
    least, most = waits_unreported(expected - now)
    return not least <= estimated - now <= most


def _share(tenant: str, ledger: Ledger) -> str:
    """What its rank follows from."""
    dominant = ledger.dominant_type_of(tenant)
    if dominant is None:
        return f"0 of {plural(sum(ledger.devices.values()), 'device')}"
    there = f"{ledger.devices_held[tenant][dominant]} of {plural(ledger.devices[dominant], 'device')}"
    if len(ledger.devices) == 1:
        return there
    return f"{there} in {', '.join(pool.name for pool in ledger.pools if pool.device_type == dominant)}"


def _why_kept(pool: Pool, reserved: Reservation, candidate: Candidate) -> str:
    kept = f"{pool.name} keeps its free devices for a job of {reserved.job} in front"
    if reserved.start is None:
        return kept
    if reserved.estimate is not None:
        return f"{kept}, which is expected to have them by {reserved.start:%H:%M} UTC"
    stated = "" if candidate.longest else ", and this one states no resources.max_run_seconds"
    return f"{kept}, which has them by {reserved.start:%H:%M} UTC{stated}"


class _Walk:
    """Along the order, with what those in front leave."""

    def __init__(self, ledger: Ledger, now: datetime, run_time: timedelta | None) -> None:
        self._ledger = ledger
        self._now = now
        self._run_time = run_time
        self._free_at = {pool.name: self._times(pool) for pool in ledger.pools}
        self._last_start = now
        self._latest_in_front = datetime.min.replace(tzinfo=UTC)

    def near(self, candidate: Candidate, position: int) -> QueueEntry:
        suited = allowed_pools(candidate, self._ledger)
        reason, waiting_for = self._why(candidate, suited)
        if reason is WaitReason.QUOTA:
            return QueueEntry(candidate, position, reason, waiting_for, None)
        since = candidate.queued_at - HEAD_STARTS[candidate.tier]
        self._latest_in_front = max(self._latest_in_front, since)
        if reason is WaitReason.ITS_TURN:
            pool = next(pool for pool in suited if can_start(candidate, pool, self._now))
            sized = largest_that_starts(candidate, pool, self._ledger, self._now) or candidate
            self._ledger = self._ledger.with_booking(pool, sized, self._now)
        elif reserves_devices(candidate, self._now):
            self._ledger = self._ledger.with_reservation(suited[0], candidate, self._now)
        starts_at = self._take_first_free(candidate, suited)
        self._last_start = max(self._last_start, starts_at)
        return QueueEntry(candidate, position, reason, waiting_for, None if starts_at == NEVER else starts_at)

    def far_behind(self, candidate: Candidate, position: int) -> QueueEntry:
        starts_at = None
        if self._last_start != NEVER:
            starts_at = self._now + (self._last_start - self._now) * (position / LOOKED_AT)
        return QueueEntry(candidate, position, WaitReason.FAR_BEHIND, FAR_BEHIND, starts_at)

    def _why(self, candidate: Candidate, suited: Sequence[Pool]) -> tuple[WaitReason, str]:
        sentence = why_waiting(candidate, self._ledger, now=self._now)
        if not suited:
            return WaitReason.QUOTA, sentence
        if any(can_start(candidate, pool, self._now) for pool in suited):
            return WaitReason.ITS_TURN, sentence
        roomy = [pool for pool in suited if pool.has_room(candidate)]
        if roomy and (reserved := roomy[0].reserved):
            return WaitReason.KEPT_NODES, _why_kept(roomy[0], reserved, candidate)
        if len(roomy) > 0:
            return WaitReason.NO_CAPACITY, sentence
        if self._latest_in_front > candidate.queued_at - HEAD_STARTS[candidate.tier]:
            share = _share(candidate.tenant, self._ledger)
            return WaitReason.SHARE, f"{sentence}; its tenant has {share}, those that have less go first"
        return WaitReason.NO_NODES, sentence

    def _times(self, pool: Pool) -> dict[int, list[datetime]]:
        """When each device of each machine is free, the earliest first."""
        times = {machine: [self._now] * free for machine, free in pool.free.items()}
        for booking in pool.bookings:
            end = self._end(booking.since, booking.longest)
            for machine in times.keys() & booking.machines:
                times[machine] += [end] * booking.devices
        size = pool.devices_per_node
        return {
            machine: sorted(each + [NEVER] * (size - len(each)))[:size] for machine, each in times.items()
        }

    def _end(self, start: datetime, longest: timedelta | None) -> datetime:
        """Whatever runs for longer than usual may end at any moment."""
        known = [each for each in (self._run_time, longest) if each is not None]
        if not known or start == NEVER:
            return NEVER
        return max(self._now, start + min(known))

    def _take_first_free(self, candidate: Candidate, suited: Sequence[Pool]) -> datetime:
        start, pool, machines = min(
            (self._first_free(candidate, pool) for pool in suited), key=lambda each: each[0]
        )
        taken_each, end = taken_per_node(candidate.resources, pool), self._end(start, candidate.longest)
        for machine in machines:
            times = self._free_at[pool.name][machine]
            self._free_at[pool.name][machine] = sorted([*times[taken_each:], *[end] * taken_each])
        return start

    def _first_free(self, candidate: Candidate, pool: Pool) -> tuple[datetime, Pool, list[int]]:
        """When the pool has room on enough machines, and which: of those with room at once the fullest."""
        last = taken_per_node(candidate.resources, pool) - 1
        roomy = (
            (times[last], bisect_right(times, times[last]), machine)
            for machine, times in self._free_at[pool.name].items()
        )
        chosen = heapq.nsmallest(candidate.resources.nodes, roomy)
        return chosen[-1][0], pool, [machine for *_, machine in chosen]
