"""All grants of a queue, as the scheduler makes them and by looking at the whole queue for each."""

from collections.abc import Sequence
from datetime import datetime

from services.scheduler.decide import queue
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.ledger import Ledger, Pool
from services.scheduler.decide.queue import Grant, Round


def grants(waiting: Sequence[Candidate], ledger: Ledger, *, now: datetime) -> list[Grant]:
    return list(iter(Round(waiting, ledger, now=now).next, None))


def grants_one_by_one(waiting: Sequence[Candidate], ledger: Ledger, *, now: datetime) -> list[Grant]:
    """The order as one would write it down, at the cost of a sort for each grant."""
    left = [each for each in waiting if each.not_before is None or each.not_before <= now]
    granted = []
    while True:
        best, ledger = _best(left, ledger, now)
        if best is None:
            return granted
        candidate, pool = best
        sized = queue.largest_that_starts(candidate, pool, ledger, now)
        assert sized is not None, f"{candidate.job_id} may start in {pool.name}"
        granted.append(Grant(candidate, queue.placement(sized, pool, now)))
        ledger = ledger.with_booking(pool, sized, now)
        left.remove(candidate)


def _best(
    waiting: Sequence[Candidate], ledger: Ledger, now: datetime
) -> tuple[tuple[Candidate, Pool] | None, Ledger]:
    """And the ledger with what those in front of it have reserved, which stays reserved."""
    for candidate in sorted(waiting, key=lambda each: queue.rank(each, ledger)):
        suited = queue.allowed_pools(candidate, ledger)
        for pool in suited:
            if queue.can_start(candidate, pool, now):
                return (candidate, pool), ledger
        if suited and queue.reserves_devices(candidate, now):
            ledger = ledger.with_reservation(suited[0], candidate, now)
    return None, ledger
