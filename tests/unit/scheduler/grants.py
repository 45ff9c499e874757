"""All grants of a queue, as the scheduler makes them and by looking at the whole queue for each."""

from collections.abc import Sequence
from datetime import datetime

from services.scheduler.decide import queue
from services.scheduler.decide.queue import Candidate, Grant, Ledger, Pool, Round


def grants(waiting: Sequence[Candidate], ledger: Ledger, *, now: datetime) -> list[Grant]:
    return list(iter(Round(waiting, ledger, now=now).next, None))


def grants_one_by_one(waiting: Sequence[Candidate], ledger: Ledger, *, now: datetime) -> list[Grant]:
    """The order as one would write it down, at the cost of a sort for each grant."""
    left = [each for each in waiting if each.not_before is None or each.not_before <= now]
    made = []
    while best := _best(left, ledger, now):
        candidate, pool = best
        made.append(Grant(candidate, queue._placement(candidate, pool)))
        ledger = ledger.with_booking(pool, candidate)
        left.remove(candidate)
    return made


def _best(waiting: Sequence[Candidate], ledger: Ledger, now: datetime) -> tuple[Candidate, Pool] | None:
    for candidate in sorted(waiting, key=lambda each: queue.rank(each, ledger)):
        suited = queue.suited_pools(candidate, ledger)
        for pool in suited:
            if queue.can_start(candidate, pool, now):
                return candidate, pool
        if suited and queue.holds_pool(candidate, now):
            ledger = ledger.with_pool_held(suited[0])
    return None
