"""Curves of many steps as a browser draws them: smoothed over all points, then few enough for its pixels. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

POINTS_OF_A_PIXEL = 2
"""Up to so many points for each pixel, every one is sent."""
MAX_WEIGHT = 0.999


@dataclass(frozen=True)
class Curve:
    """One entry for each bucket of steps; `every` is how many steps a bucket has."""

    every: int
    steps: list[int]
    last: list[float | None]
    """Value of the bucket's last step; None where it is not a number."""
    low: list[float | None]
    high: list[float | None]
    smooth: list[float | None]
    """Smoothed value at the bucket's last step."""
    total: float
    """Sum that smoothing continues from after the last step."""
    count: int
    """Finite values that it is over."""
    num_points: int
    not_numbers: list[int]
    """Steps whose value is not a finite number; at most a hundred of them."""


def smoothed(values: Sequence[float], weight: float) -> tuple[list[float], float, int]:
    """Smooth as TensorBoard does: an exponential average without the bias of its start at zero. Values that are no
    numbers are passed over, and a constant stays what it is. Also the sum and the count that it continues from.
    """
    total, count, shown, present = 0.0, 0, float("nan"), []
    rest, left = 1 - weight, 1.0
    for value in values:
        if isfinite(value):
            total = weight * total + rest * value
            count += 1
            left *= weight
            shown = total / (1 - left)
        present.append(shown)
    return present, total, count


def curve(
    steps: Sequence[int],
    values: Sequence[float],
    *,
    weight: float,
    pixels: int,
    first: int = 0,
    last: int | None = None,
) -> Curve:
    """`first` and `last`: the steps that are looked at; what is smoothed before them counts all the same."""
    smooth, total, count = smoothed(values, min(max(weight, 0.0), MAX_WEIGHT))
    end = steps[-1] if last is None and steps else last or 0
    begin, stop = bisect_left(steps, first), bisect_right(steps, end)
    every = bucket_size(steps[begin:stop], pixels)
    rows = [*_buckets(steps, values, smooth, begin, stop, every)]
    return Curve(
        every=every,
        steps=[row[0] for row in rows],
        last=[_finite(row[1]) for row in rows],
        low=[_finite(row[2]) for row in rows],
        high=[_finite(row[3]) for row in rows],
        smooth=[_finite(row[4]) for row in rows],
        total=total,
        count=count,
        num_points=stop - begin,
        not_numbers=[steps[at] for at in range(begin, stop) if not isfinite(values[at])][:100],
    )


def bucket_size(steps: Sequence[int], pixels: int) -> int:
    """The smallest power of two by which the steps fit into the pixels; 1 where every point does."""
    if len(steps) <= POINTS_OF_A_PIXEL * pixels:
        return 1
    every = 1
    while steps[-1] // every - steps[0] // every + 1 > pixels:
        every *= 2
    return every


def onwards(seconds: Sequence[float | None]) -> list[float]:
    """Never back: the clocks of two attempts' machines may differ. Zero before the first that is known; an empty list
    where none is."""
    if all(each is None for each in seconds):
        return []
    return [round(each, 1) for each in accumulate((each or 0.0 for each in seconds), max, initial=0.0)][1:]


def breaks(attempts: Sequence[int | None]) -> list[int]:
    """Return the places of points before which another attempt began: there was no training between the two."""
    return [at for at in range(1, len(attempts)) if attempts[at] != attempts[at - 1]]


Row = tuple[int, float, float | None, float | None, float]


def _buckets(
    steps: Sequence[int], values: Sequence[float], smooth: Sequence[float], begin: int, stop: int, every: int
) -> Iterator[Row]:
    """Buckets begin at multiples of their size, so that old ones stay as they are while a run goes on."""
    if every > 1 and begin < stop:
        yield steps[begin], values[begin], _finite(values[begin]), _finite(values[begin]), smooth[begin]
    is_clean = all(map(isfinite, values))
    while begin < stop:
        end = bisect_left(steps, (steps[begin] // every + 1) * every, begin, stop)
        bucket = values[begin:end] if is_clean else [*filter(isfinite, values[begin:end])]
        low, high = (min(bucket), max(bucket)) if bucket else (None, None)
        yield steps[end - 1], values[end - 1], low, high, smooth[end - 1]
        begin = end


def _finite(value: float | None) -> float | None:
    """Six digits are more than a screen shows, and half as many bytes; JSON has no word for what is no number."""
    return float(f"{value:.6g}") if value is not None and isfinite(value) else None
