"""Intervals of counted shares and of paired changes, which hold where counts are small or nothing changed."""

import math
from collections.abc import Callable
from statistics import NormalDist

from schemas.evaluation import Interval

LEVEL = 0.95
MANY_CHANGED = 25
"""Number of pairs on either side from which a difference is as good as normally distributed."""
BISECTIONS = 60
"""Number of halvings of a range of at most 2: what is left is below the precision of a float."""


def share_interval(hits: float, count: int, *, level: float = LEVEL) -> Interval:
    """Return Wilson's score interval of hits / count; `hits` may hold halves.

    Source: E. B. Wilson, Journal of the American Statistical Association 22 (1927).
    """
    z = normal_quantile(level)
    center = (hits + z * z / 2) / (count + z * z)
    variance = hits * (count - hits) / count + z * z / 4
    half = z / (count + z * z) * math.sqrt(max(0.0, variance))
    # Of no hits and of nothing but hits the ends are the share itself, but for rounding.
    return Interval(
        low=max(0.0, min(center - half, hits / count)), high=min(1.0, max(center + half, hits / count))
    )


def paired_interval(gained: int, lost: int, count: int, *, level: float = LEVEL) -> Interval:
    """Return the interval of (gained - lost) / count.

    gained: items that only the candidate has right; lost: those that only the base has right. For few changed pairs
    it holds the changes that McNemar's score test does not reject. Source: T. Tango, Statistics in Medicine 17
    (1998).
    """
    z = normal_quantile(level)
    change = (gained - lost) / count
    if min(gained + lost, count - abs(gained - lost)) >= MANY_CHANGED:
        half = z * math.sqrt(((gained + lost) / count - change * change) / count)
        return Interval(low=change - half, high=change + half)
    low = _bisect(lambda d: _score(gained, lost, count, d) > z, -1.0, change)
    high = _bisect(lambda d: _score(gained, lost, count, d) > -z, change, 1.0)
    return Interval(low=low, high=high)


def normal_quantile(level: float) -> float:
    """Return the number of standard errors on either side of the estimate."""
    return NormalDist().inv_cdf((1.0 + level) / 2.0)


def _score(gained: int, lost: int, count: int, change: float) -> float:
    """Return the standard errors between the observed change and `change`; they fall as `change` rises."""
    a = 2.0 * count
    b = (2.0 * count - gained + lost) * change - gained - lost
    c = -lost * change * (1.0 - change)
    lost_share = (math.sqrt(max(0.0, b * b - 4.0 * a * c)) - b) / (2.0 * a)
    variance = count * (2.0 * lost_share + change * (1.0 - change))
    distance = gained - lost - count * change
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)


def _bisect(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """Return where a condition that holds at `low` ends."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2.0
