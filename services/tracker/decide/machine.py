"""Rules of the machine: memory, and how well devices are used."""

from datetime import timedelta
from itertools import pairwise

from schemas.alert import AlertRule
from schemas.training import StepMetrics
from services.tracker.decide.reading import Reading
from services.tracker.decide.robust import median
from services.tracker.decide.signals import LEVEL, MEMORY_BLOCK, Signals

LEAK_BLOCKS = 8
"""Blocks in a row that each need more memory than the one before."""
LEAK_GROWTH = 0.02
"""Share by which the memory must have grown over them."""
LEAK_STEADY = 0.5
"""Least growth of their newer half, relative to the older: what fills up grows ever more slowly."""
LOW_USE = 0.3
ENOUGH_USE = 0.35
LOW_SPEED = 0.5
"""Share of the attempt's own usual tokens per second."""
ENOUGH_SPEED = 0.6
SLOW_FOR = timedelta(seconds=30)
SLOW_STEPS = 8


def memory_leak(signals: Signals) -> Reading | None:
    """Look at the end of each block of steps: at neighbouring blocks, and at every third, for slower leaks."""
    if signals.num_steps % MEMORY_BLOCK or len(signals.memory) <= LEAK_BLOCKS:
        return None
    peaks = signals.memory[-LEAK_BLOCKS - 1 :]
    for chosen in (peaks, signals.memory[::-3][LEAK_BLOCKS::-1]):
        if _is_leak(chosen):
            message = f"peak of memory grew from {_gib(chosen[0])} to {_gib(chosen[-1])} without a pause"
            limit = chosen[0] * (1 + LEAK_GROWTH)
            return Reading(AlertRule.MEMORY_LEAK, True, message, chosen[-1], limit, "bytes")
    if peaks[0] == peaks[-1]:
        return Reading(AlertRule.MEMORY_LEAK, False, f"peak of memory stays at {_gib(peaks[-1])}")
    return None


def _is_leak(peaks: list[int]) -> bool:
    if len(peaks) <= LEAK_BLOCKS:
        return False
    grown = [after - before for before, after in pairwise(peaks)]
    half = len(grown) // 2
    is_steady = sum(grown[half:]) >= LEAK_STEADY * sum(grown[:half])
    return min(grown) > 0 and is_steady and peaks[-1] >= peaks[0] * (1 + LEAK_GROWTH)


def low_utilization(signals: Signals, step: StepMetrics) -> Reading | None:
    """Look whether a GPU has been idle for most of some time, or the run is much slower than it usually was."""
    if not signals.is_warm or len(signals.speeds) < LEVEL:
        return None
    speed = step.tokens_per_second
    use = None if step.mfu is None else step.device_utilization  # a CPU is shared
    is_idle = use is not None and use < LOW_USE
    is_low = speed < LOW_SPEED * signals.usual_speed or is_idle
    signals.slow_steps = signals.slow_steps + 1 if is_low else 0
    signals.slow_since = (signals.slow_since or step.time) if is_low else None
    latest, usage = median(signals.speeds), median(signals.uses)
    message = f"{latest:,.0f} tokens per second, usually {signals.usual_speed:,.0f}"
    message += f"; devices in use {usage:.0%} of the time" if use is not None else ""
    since = step.time - signals.slow_since if signals.slow_since is not None else timedelta(0)
    if signals.slow_steps >= SLOW_STEPS and since >= SLOW_FOR:
        limit = LOW_SPEED * signals.usual_speed
        if use is not None and latest >= limit:
            return Reading(AlertRule.LOW_UTILIZATION, True, message, usage, LOW_USE, "fraction")
        return Reading(AlertRule.LOW_UTILIZATION, True, message, latest, limit, "tokens_per_second")
    is_enough = latest >= ENOUGH_SPEED * signals.usual_speed and (use is None or usage >= ENOUGH_USE)
    return Reading(AlertRule.LOW_UTILIZATION, False, message) if is_enough and not is_low else None


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
