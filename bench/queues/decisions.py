"""Kueue's workload under the scheduler's decisions alone, in virtual time: how long their order takes by itself.

Nothing of Kafka, Postgres or a service runs; a decision takes no time on this clock.
"""

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.fleet.policies import Ours
from bench.fleet.simulation import moment
from bench.queues.workload import Workload, pools
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.ledger import Booking, DeviceType, Ledger, Pool, pool_of
from services.scheduler.decide.queue import GRANTS_OF_A_ROUND
from services.scheduler.model import Placement


@dataclass
class Replay:
    """A run of the workload; after it, when each started, and when the last ended."""

    workloads: Sequence[Workload]
    started: dict[str, float] = field(default_factory=dict)
    ended_at: float = 0.0
    decision_seconds: float = 0.0
    """Time that the decisions took on the real clock."""
    policy: Ours = field(default_factory=Ours)
    pools: dict[str, Pool] = field(default_factory=dict)
    bookings: dict[str, dict[str, Booking]] = field(default_factory=lambda: defaultdict(dict))
    held: dict[str, Counter[DeviceType]] = field(default_factory=lambda: defaultdict(Counter))
    _ends: list[tuple[float, str]] = field(default_factory=list)

    def run(self) -> "Replay":
        self.pools = {fact.pool: pool_of(fact, now=moment(0)).with_bookings(()) for fact in pools()}
        by_id = {each.job_id: each for each in self.workloads}
        coming = [(each.created_at, each.job_id) for each in reversed(self.workloads)]
        while coming or self._ends:
            at = min(queue[index][0] for queue, index in ((coming, -1), (self._ends, 0)) if queue)
            while self._ends and self._ends[0][0] <= at:
                self._end(by_id[heapq.heappop(self._ends)[1]])
            while coming and coming[-1][0] <= at:
                self.policy.add(_candidate(by_id[coming.pop()[1]]))
            self.ended_at = at
            self._start_all(by_id, at)
        return self

    def _start_all(self, by_id: dict[str, Workload], at: float) -> None:
        while self.policy.is_waited_for:
            began = time.perf_counter()
            starts = [*self.policy.starts(Ledger(tuple(self.pools.values()), self.held), moment(at))]
            self.decision_seconds += time.perf_counter() - began
            for candidate, placement in starts:
                self._start(by_id[candidate.job_id], candidate, placement, at)
            if len(starts) < GRANTS_OF_A_ROUND:
                return

    def _start(self, workload: Workload, candidate: Candidate, placement: Placement, at: float) -> None:
        self.policy.remove(candidate)
        self.started[workload.job_id] = at
        booking = Booking(placement.machines, placement.taken_per_node, moment(at))
        self._book(workload, booking, 1)
        heapq.heappush(self._ends, (at + workload.kind.seconds, workload.job_id))

    def _end(self, workload: Workload) -> None:
        self._book(workload, self.bookings[workload.pool][workload.job_id], -1)

    def _book(self, workload: Workload, booking: Booking, sign: int) -> None:
        pool, bookings = self.pools[workload.pool], self.bookings[workload.pool]
        if sign > 0:
            bookings[workload.job_id] = booking
        else:
            del bookings[workload.job_id]
        self.pools[pool.name] = pool.with_bookings(bookings.values())
        self.held[workload.tenant][pool.device_type] += sign * len(booking.machines) * booking.devices


def _candidate(workload: Workload) -> Candidate:
    return Candidate(
        job_id=workload.job_id,
        tenant=workload.tenant,
        tier=workload.kind.tier,
        queued_at=moment(workload.created_at),
        resources=workload.kind.resources,
    )
