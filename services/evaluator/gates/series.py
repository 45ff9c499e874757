"""The same items scored by the base model and by the candidate, compared with paired bootstrap intervals."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.evaluation import Interval

Floats = NDArray[np.float64]
Scale = Callable[[Floats], Floats]

RESAMPLES = 1000
CHUNK = 100
"""Resamples drawn at once: bounds the memory of a large benchmark."""
MAX_NATS = 700.0
"""exp overflows a float soon after."""
ROUNDING = 1e-9
"""Thresholds are products of floats; what is equal on paper must count as reached."""


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
    """new - base, from the same resamples of both."""


def reaches(value: float, threshold: float, *, higher_is_better: bool = True) -> bool:
    """Whether a number is at its threshold or on the right side of it. NaN never is."""
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
    """Why the items are not the whole, finite, paired set that a stage needs; None where they are."""
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


def compare(series: Series, scale: Scale) -> Comparison:
    """Both sides' metric with 95 % intervals. The series must have no gap."""
    base = sorted(series.base, key=lambda item: item.key)
    new = sorted(series.new, key=lambda item: item.key)
    drawn = resampled((base, new), scale)
    values = [metric(side, scale) for side in (base, new)]
    return Comparison(
        count=series.expected,
        base=Estimate(values[0], _percentiles(drawn[0])),
        new=Estimate(values[1], _percentiles(drawn[1])),
        change=Estimate(values[1] - values[0], _percentiles(drawn[1] - drawn[0])),
    )


def estimate(items: Sequence[Item], scale: Scale) -> Estimate:
    """One metric with its 95 % interval."""
    ordered = sorted(items, key=lambda item: item.key)
    return Estimate(metric(ordered, scale), _percentiles(resampled((ordered,), scale)[0]))


def metric(items: Sequence[Item], scale: Scale) -> float:
    ratio = math.fsum(item.amount for item in items) / math.fsum(item.weight for item in items)
    return float(scale(np.array([ratio]))[0])


def resampled(sides: Sequence[Sequence[Item]], scale: Scale) -> Floats:
    """The metric of every side on the same resamples of the items. Returns: (sides, RESAMPLES)."""
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
    """The same items always give the same interval."""
    return int.from_bytes(hashlib.sha256("\n".join(keys).encode()).digest()[:8], "big")


def _percentiles(drawn: Floats) -> Interval:
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(low=float(low), high=float(high))
