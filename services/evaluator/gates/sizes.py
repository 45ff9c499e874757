"""How many items each check needs, and what so many items can show."""

import math

from services.evaluator.gates.intervals import normal_quantile

MIN_HOLDOUT_ITEMS = 100
MIN_HARMFUL_PROMPTS = 120
MIN_BENIGN_PROMPTS = 100
MIN_CONSISTENT_PAIRS = 60
MIN_BENCHMARK_ITEMS = 1000
"""Least number of items of a benchmark that declares no margin of its own."""
USUAL_DISCORDANCE = 0.10
"""Share of items that one of two equally good models has right and the other has not."""
MAX_NEEDED = 1_000_000
"""Number of items above which none is advised: nobody has as many."""


def half_width_points(items: int) -> float:
    """Return half the 95 % interval of the change between two equally good models."""
    return 100.0 * normal_quantile(0.95) * math.sqrt(USUAL_DISCORDANCE / items)


def smallest_margin_points(items: int) -> float:
    """Return the smallest margin that so many items can show, in tenths of a point."""
    return math.ceil(10.0 * half_width_points(items) - 1e-9) / 10.0


def items_for(count: int, *, distance: float, half_width: float) -> int | None:
    """Return the items at which an interval that reaches so far at `count` items is narrower than the distance."""
    if distance <= 0.0 or half_width <= 0.0:
        return None
    needed = math.ceil(count * (half_width / distance) ** 2)
    return needed if count < needed <= MAX_NEEDED else None
