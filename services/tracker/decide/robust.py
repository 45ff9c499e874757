"""Statistics of short series in which some numbers may be far off."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

NORMAL = 1.4826
"""Factor that makes the median of absolute deviations the standard deviation of normal noise (Hampel, 1974)."""


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def midmean(values: Sequence[float]) -> float:
    """Return the mean of the middle half: nearly as exact as the mean of all (Tukey, 1977), and as robust."""
    quarter = len(values) // 4
    middle = sorted(values)[quarter : len(values) - quarter]
    return sum(middle) / len(middle)


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation by the median of absolute deviations."""
    center = median(values)
    return NORMAL * median([abs(value - center) for value in values])


def noise(values: Sequence[float]) -> float:
    """Return the standard deviation about a level that moves slowly: from differences of neighbours (Rice, 1984), and
    from deviations where neighbours are alike.
    """
    differences = [abs(after - before) for before, after in pairwise(values)]
    return max(NORMAL * median(differences) / sqrt(2), spread(values))


def fall(values: Sequence[float]) -> tuple[float, float]:
    """Return by how much a line through the values falls over all of them, and the standard error of that.

    values: at least three.
    """
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    squares = count * (count**2 - 1) / 12
    slope = sum((place - middle) * (value - mean) for place, value in enumerate(values)) / squares
    residuals = sum((value - mean - slope * (place - middle)) ** 2 for place, value in enumerate(values))
    return -slope * count, count * sqrt(residuals / (count - 2) / squares)
