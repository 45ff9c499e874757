"""The same items scored by the base model and by the candidate, compared with paired intervals."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.evaluation import Interval
from services.evaluator.gates.intervals import LEVEL, paired_interval, share_interval

Floats = NDArray[np.float64]
Scale = Callable[[Floats], Floats]

RESAMPLES = 4000
CHUNK = 100
"""Number of resamples drawn at once, which bounds the memory of a large benchmark."""
MAX_NATS = 700.0
"""Nats per token up to which perplexity is computed: exp overflows a float soon after."""
MIN_CHANGED = 10
"""Number of items with another score from which resamples say something about items that were not drawn."""
ROUNDING = 1e-9
"""Relative slack of thresholds: they are products of floats, and what is equal on paper must count as reached."""


@dataclass(frozen=True)
class Item:
    """One scored item. A metric is the sum of amounts over the sum of weights."""

    key: str
    amount: float
    weight: float = 1.0


@dataclass(frozen=True)
class Series:
    """Every item of one suite, scored twice. `expected` is how many there must be."""

    expected: int
    base: tuple[Item, ...]
    new: tuple[Item, ...]


@dataclass(frozen=True)
class Estimate:
    value: float
    interval: Interval


@dataclass(frozen=True)
class Comparison:
    count: int
    base: Estimate
    new: Estimate
    change: Estimate
    """Difference new - base, item by item."""


def reaches(value: float, threshold: float, *, higher_is_better: bool = True) -> bool:
    """Return whether a number is at its threshold or on the right side of it. NaN never is."""
    slack = ROUNDING * max(1.0, abs(threshold))
    return value >= threshold - slack if higher_is_better else value <= threshold + slack


def in_points(ratios: Floats) -> Floats:
    return 100.0 * ratios


def as_perplexity(nats_per_token: Floats) -> Floats:
    perplexity: Floats = np.exp(np.minimum(nats_per_token, MAX_NATS))
    return perplexity


def as_share(ratios: Floats) -> Floats:
    return ratios


def find_gap(series: Series) -> str | None:
    """Return why the items are not the whole, finite, paired set that a check needs; None where they are."""
    if series.expected == 0:
        return "no items"
    for side, items in (("base", series.base), ("candidate", series.new)):
        keys = {item.key for item in items}
        if len(items) != series.expected or len(keys) != series.expected:
            return f"{side}: {len(keys)} of {series.expected} items scored"
        bad = next((item for item in items if not _is_usable(item)), None)
        if bad:
            return f"{side}: item {bad.key} scored {bad.amount}/{bad.weight}, expected finite numbers"
    if {item.key for item in series.base} != {item.key for item in series.new}:
        return "base and candidate were scored on different items"
    return None


def _is_usable(item: Item) -> bool:
    return math.isfinite(item.amount) and math.isfinite(item.weight) and item.weight > 0


def compare(series: Series, scale: Scale, *, level: float = LEVEL) -> Comparison:
    """Return both sides' metric and their difference with intervals. The series must have no gap."""
    base = sorted(series.base, key=lambda item: item.key)
    new = sorted(series.new, key=lambda item: item.key)
    if scale is not as_perplexity and _is_counted(base) and _is_counted(new):
        return _compare_counts(base, new, float(scale(np.ones(1))[0]), level)
    drawn = _resampled((base, new), scale)
    values = [metric(side, scale) for side in (base, new)]
    change = values[1] - values[0]
    changed = _changed(base, new)
    interval = _percentiles(drawn[1] - drawn[0], level)
    if changed.size < MIN_CHANGED or interval.low == interval.high:
        interval = _cautious_interval(changed, len(base), change, scale, level)
    return Comparison(
        count=series.expected,
        base=Estimate(values[0], _percentiles(drawn[0], level)),
        new=Estimate(values[1], _percentiles(drawn[1], level)),
        change=Estimate(change, interval),
    )


def share_of(hits: float, count: int, factor: float = 1.0, *, level: float = LEVEL) -> Estimate:
    return Estimate(factor * hits / count, _scaled(share_interval(hits, count, level=level), factor))


def metric(items: Sequence[Item], scale: Scale) -> float:
    ratio = math.fsum(item.amount for item in items) / math.fsum(item.weight for item in items)
    return float(scale(np.array([ratio]))[0])


def _is_counted(items: Sequence[Item]) -> bool:
    """Return whether each item is one hit or none."""
    return all(item.weight == 1.0 and item.amount in (0.0, 1.0) for item in items)


def _compare_counts(base: Sequence[Item], new: Sequence[Item], factor: float, level: float) -> Comparison:
    count = len(base)
    gained = sum(after.amount > before.amount for before, after in zip(base, new, strict=True))
    lost = sum(after.amount < before.amount for before, after in zip(base, new, strict=True))
    change = _scaled(paired_interval(gained, lost, count, level=level), factor)
    return Comparison(
        count=count,
        base=share_of(sum(item.amount for item in base), count, factor, level=level),
        new=share_of(sum(item.amount for item in new), count, factor, level=level),
        change=Estimate(factor * (gained - lost) / count, change),
    )


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(low=factor * interval.low, high=factor * interval.high)


def _changed(base: Sequence[Item], new: Sequence[Item]) -> Floats:
    """Return the differences of the items' own ratios, without those that are zero."""
    before, after = (np.array([item.amount / item.weight for item in side]) for side in (base, new))
    difference: Floats = after - before
    changed: Floats = difference[difference != 0.0]
    return changed


def _cautious_interval(changed: Floats, count: int, change: float, scale: Scale, level: float) -> Interval:
    """Return an interval where resamples would say nothing: as if each changed item had changed by as much as the one
    that did most.

    Where none changed they might by all there is. A perplexity has no bounds: all that is said of its change is that
    it may be none.
    """
    if scale is as_perplexity:
        return Interval(low=min(0.0, change), high=max(0.0, change))
    gained, lost = int((changed > 0).sum()), int((changed < 0).sum())
    most = float(np.abs(changed).max()) if changed.size else 1.0
    unit = most * float(scale(np.ones(1))[0])
    interval = _scaled(paired_interval(gained, lost, count, level=level), unit)
    return Interval(low=min(interval.low, change), high=max(interval.high, change))


def _resampled(sides: Sequence[Sequence[Item]], scale: Scale) -> Floats:
    """Return the metric of every side on the same resamples of the items, of shape (sides, RESAMPLES)."""
    amounts = np.array([[item.amount for item in side] for side in sides])
    weights = np.array([[item.weight for item in side] for side in sides])
    num_items = amounts.shape[1]
    random = np.random.default_rng(_seed([item.key for item in sides[0]]))
    chunks = []
    for _ in range(RESAMPLES // CHUNK):
        drawn = random.integers(num_items, size=(CHUNK, num_items), dtype=np.int32)
        chunks.append(amounts[:, drawn].sum(axis=2) / weights[:, drawn].sum(axis=2))
    return scale(np.concatenate(chunks, axis=1))


def _seed(keys: Sequence[str]) -> int:
    """Return a seed made of the keys, so that the same items always give the same interval."""
    return int.from_bytes(hashlib.sha256("\n".join(keys).encode()).digest()[:8], "big")


def _percentiles(drawn: Floats, level: float) -> Interval:
    outside = 100.0 * (1.0 - level) / 2.0
    low, high = np.percentile(drawn, [outside, 100.0 - outside])
    return Interval(low=float(low), high=float(high))
