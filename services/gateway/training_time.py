"""How long a job will hold its devices and what it will cost, by attempts that have ended in the same pool. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from statistics import median, quantiles
from typing import Literal

from schemas.base import Count, Seconds, Usd, Value
from schemas.node import PoolCapacityChanged
from schemas.resolution import flops_per_token, resolve_recipe
from schemas.specification import Recipe

NEWEST = 20
"""Most attempts that an estimate is made of."""
FEWEST_ESTIMATES = 5
"""Fewest estimates of jobs that have ended from which their error is counted."""
SMALLEST_SUM = Decimal("0.0001")
"""US dollars."""

Likeness = Literal["recipe", "base_model", "pool"]
DOUBTS: Mapping[Likeness, float] = {"recipe": 1.15, "base_model": 1.5, "pool": 3.0}
"""An estimate reaches from its expected number divided by this to the number times this, by what the attempts that it
is made of have in common with the job, and further where these differed by more."""
LIKENESSES = tuple(DOUBTS)


class SecondsRange(Value):
    low: Seconds
    expected: Seconds
    high: Seconds


class UsdRange(Value):
    low: Usd
    expected: Usd
    high: Usd


class EstimatedTime(Value):
    """What a job would need in a pool that could take it."""

    pool: str
    seconds: SecondsRange
    """Seconds for which it holds its devices: without its time in the queue, the gate and what a lost node costs."""
    cost_usd: UsdRange
    attempts: Count
    """Attempts that it is estimated from."""
    alike: Likeness
    """What these have in common with the job: base model, method and number of devices; the base model; the pool."""
    error: float | None
    """Median error of the newest estimates in this pool, those for the base model where there are any, as a share of
    the true time; None where fewer than five of those jobs have ended."""


class AttemptTime(Value):
    """How long an attempt held its devices, and for what."""

    pool: str
    base_sha: str
    method: str
    num_devices: Count
    flops: float
    """Floating-point operations of its steps over all devices, by the size of its model."""
    training_seconds: Seconds
    """Seconds from its first step to its last one."""
    other_seconds: Seconds
    """Seconds before and after: starting, reading, compiling, saving."""
    estimated_seconds: Seconds | None
    """What was estimated before it began; None where nothing was, or where it was not the whole job."""
    ended_at: datetime

    @property
    def seconds_per_flop(self) -> float:
        """Seconds of one device."""
        return self.training_seconds * self.num_devices / self.flops

    @property
    def error(self) -> float | None:
        seconds = self.training_seconds + self.other_seconds
        return None if self.estimated_seconds is None else abs(self.estimated_seconds - seconds) / seconds


class RecordedAttempt(Value):
    """What is recorded of an attempt's steps."""

    steps: Count
    """Steps that are recorded, which may be fewer than it made."""
    first_step: int | None
    last_step: int | None
    elapsed: Seconds | None
    """Seconds from the end of its first step to the end of its last one."""
    tokens: Count


@dataclass(frozen=True)
class Range:
    low: float
    expected: float
    high: float

    @classmethod
    def exactly(cls, number: float) -> "Range":
        return cls(number, number, number)

    def __mul__(self, other: "Range | float") -> "Range":
        if not isinstance(other, Range):
            other = Range.exactly(other)
        return Range(self.low * other.low, self.expected * other.expected, self.high * other.high)

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)


TOKENS_PER_BYTE = Range(0.15, 0.25, 0.4)
"""Where no file of the tenant has been validated for the base model: English has about four bytes a token, and JSON
stands around it."""


@dataclass(frozen=True)
class AskedStage:
    """What a stage of a job asks of its devices."""

    base_sha: str
    method: str
    num_devices: int
    flops: Range


def flops_of(recipe: Recipe, *, num_parameters: int, tokens: Range, rows: int, windows: int) -> Range:
    """Return the operations of all epochs on a file of so many tokens.

    rows, windows: of the file, by which a number of epochs that the recipe leaves open is chosen.
    """
    epochs = resolve_recipe(recipe, rows=rows, windows=windows, num_devices=1).recipe.num_epochs
    assert isinstance(epochs, int), "the recipe is resolved"
    return tokens * (epochs * flops_per_token(recipe, num_weights=num_parameters))


def estimate(
    stages: Sequence[AskedStage], pool: PoolCapacityChanged, ended: Sequence[AttemptTime]
) -> EstimatedTime | None:
    """Estimate what a job needs in the pool; None where no attempt has ended there.

    ended: attempts in the pool, the newest first.
    """
    if not ended:
        return None
    alike = [_most_alike(stage, ended) for stage in stages]
    seconds = Range.exactly(0)
    for stage, (likeness, attempts) in zip(stages, alike, strict=True):
        seconds += _seconds_of(stage, attempts, doubt=DOUBTS[likeness])
    errors = [each.error for each in ended if each.error is not None][:NEWEST]
    per_second = pool.price_per_hour * stages[0].num_devices / (pool.devices_per_node * 3600)
    return EstimatedTime(
        pool=pool.pool,
        seconds=SecondsRange(low=seconds.low, expected=seconds.expected, high=seconds.high),
        cost_usd=UsdRange(
            low=_money(seconds.low, per_second),
            expected=_money(seconds.expected, per_second),
            high=_money(seconds.high, per_second),
        ),
        attempts=min(len(attempts) for _, attempts in alike),
        alike=max((likeness for likeness, _ in alike), key=LIKENESSES.index),
        error=median(errors) if len(errors) >= FEWEST_ESTIMATES else None,
    )


def _most_alike(stage: AskedStage, ended: Sequence[AttemptTime]) -> tuple[Likeness, Sequence[AttemptTime]]:
    """Return the newest attempts of those that have the most in common with the stage."""
    on_base = [each for each in ended if each.base_sha == stage.base_sha]
    asked = (stage.method, stage.num_devices)
    same = [each for each in on_base if (each.method, each.num_devices) == asked]
    if same:
        return "recipe", same[:NEWEST]
    return ("base_model", on_base[:NEWEST]) if on_base else ("pool", ended[:NEWEST])


def _seconds_of(stage: AskedStage, attempts: Sequence[AttemptTime], *, doubt: float) -> Range:
    rate = _spread(attempts, lambda each: each.seconds_per_flop, doubt=doubt)
    other = _spread(attempts, lambda each: each.other_seconds, doubt=doubt)
    return other + stage.flops * rate * (1 / stage.num_devices)


def _spread(
    attempts: Sequence[AttemptTime], number: Callable[[AttemptTime], float], *, doubt: float
) -> Range:
    """Return the median, and the numbers that nine of ten are above or below, or as far as the doubt where that is
    further."""
    numbers = [number(each) for each in attempts]
    middle = median(numbers)
    tenths = quantiles(numbers, n=10, method="inclusive") if len(numbers) > 1 else [middle]
    return Range(min(tenths[0], middle / doubt), middle, max(tenths[-1], middle * doubt))


def _money(seconds: float, per_second: Decimal) -> Decimal:
    return (Decimal(str(seconds)) * per_second).quantize(SMALLEST_SUM)


def time_of(
    recorded: RecordedAttempt,
    *,
    pool: str,
    base_sha: str,
    recipe: Recipe,
    num_parameters: int,
    num_devices: int,
    device_seconds: float,
    estimated_seconds: float | None,
    ended_at: datetime,
) -> AttemptTime | None:
    """Return how long an attempt took; None where too few of its steps are recorded to say it.

    A step is timed at its end: the first one is taken to have lasted as long as the others did on average.
    estimated_seconds: of the whole job; it is kept only where the attempt made all of its steps.
    """
    held = device_seconds / num_devices
    flops = float(recorded.tokens * flops_per_token(recipe, num_weights=num_parameters))
    if recorded.steps < 2 or not recorded.elapsed or not flops:
        return None
    training = min(held, recorded.elapsed * recorded.steps / (recorded.steps - 1))
    return AttemptTime(
        pool=pool,
        base_sha=base_sha,
        method=recipe.method.value,
        num_devices=num_devices,
        flops=flops,
        training_seconds=training,
        other_seconds=held - training,
        estimated_seconds=estimated_seconds,
        ended_at=ended_at,
    )
