"""Rules of time and money: nothing need be heard for them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from schemas.alert import AlertRule
from schemas.numbers import money
from services.tracker.decide.cost import price_of
from services.tracker.decide.reading import Reading
from services.tracker.decide.robust import median
from services.tracker.decide.signals import Signals

SHORTEST_STALL = timedelta(seconds=40)
STALL_STEPS = 5
"""Usual times of a step that pass without one."""
STALL_GAPS = 1.5
"""Longest times without a step so far, as those of checkpoints and validations are."""
FIRST_VALIDATION = timedelta(minutes=15)
"""Time that the first validation may take, of which none is known yet."""
ENOUGH_STEPS = 20
ENOUGH_TIME = timedelta(seconds=60)
ENOUGH_SHARE = 0.05
"""A speed is known from so many steps over so long, when so much of the run is done."""
BACK_TO_PLAN = Decimal("0.95")


@dataclass(frozen=True)
class Spending:
    """What a job has cost, and what its present attempt costs."""

    before: Decimal
    """US dollars of its earlier attempts."""
    price_per_hour: Decimal
    """Of all nodes of the attempt."""
    began_at: datetime


def silence_allowed(signals: Signals, *, validates: bool) -> timedelta:
    """Return how long after the newest step the next one may come.

    validates: whether the whole validation file is measured while it trains, which records no step.
    """
    usual = timedelta(seconds=median(signals.gaps)) if signals.gaps else timedelta(0)
    longest = timedelta(seconds=signals.longest_gap)
    shortest = FIRST_VALIDATION if validates and not signals.validations else SHORTEST_STALL
    return max(shortest, STALL_STEPS * usual, STALL_GAPS * longest)


def stall(
    signals: Signals, *, now: datetime, listening_since: datetime, validates: bool, share_done: float | None
) -> Reading | None:
    """Look for steps that should be there.

    listening_since: since when all that is written is read; nothing could be heard before.
    """
    if signals.heard_at is None or share_done == 1.0:
        return None
    silence = now - max(signals.heard_at, listening_since)
    allowed = silence_allowed(signals, validates=validates)
    if silence < allowed:
        return None
    seconds, limit = silence.total_seconds(), allowed.total_seconds()
    message = f"no step for {seconds:.0f} s after step {signals.step}; at most {limit:.0f} s were expected"
    return Reading(AlertRule.STALL, True, message, seconds, limit, "seconds")


def cost_above_plan(
    signals: Signals, spending: Spending, *, expected: Decimal, share_done: float | None, now: datetime
) -> Reading | None:
    """Look what the job will have cost at the speed of this attempt."""
    spent = spending.before + price_of(spending.price_per_hour, now - spending.began_at)
    remaining = _remaining(signals, share_done)
    projected = spent + price_of(spending.price_per_hour, remaining) if remaining is not None else spent
    message = (
        f"{money(projected)} at this speed, of which {money(spent)} are spent; expected {money(expected)}"
    )
    if projected > expected:
        return Reading(
            AlertRule.COST_ABOVE_PLAN, True, message, float(projected), float(expected), "us_dollars"
        )
    if remaining is not None and projected <= BACK_TO_PLAN * expected:
        return Reading(AlertRule.COST_ABOVE_PLAN, False, message)
    return None


def _remaining(signals: Signals, share_done: float | None) -> timedelta | None:
    """Return how long the rest takes; None where the speed or the end is not known."""
    if signals.began is None or signals.time is None or signals.num_steps < ENOUGH_STEPS:
        return None
    if share_done is None or share_done < ENOUGH_SHARE:
        return None
    trained, epochs = signals.time - signals.began, signals.epoch - signals.began_epoch
    if trained < ENOUGH_TIME or epochs <= 0:
        return None
    return trained / epochs * (signals.epoch / share_done - signals.epoch)
