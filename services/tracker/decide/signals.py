"""What is kept of an attempt while it trains, so that its rules need no earlier step. Bounded, and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import exp, isfinite, log
from typing import TypeVar

from schemas.training import StepMetrics
from services.tracker.decide.robust import median, midmean

T = TypeVar("T")

WINDOW = 64
"""Steps that the noise is measured over."""
WARM_UP = 32
"""Steps of an attempt before any rule of the curve: a resumed one is compared with nothing before it."""
LEVEL = 16
"""Steps whose median is the present level of the loss."""
MEMORY_BLOCK = 8
"""Steps of one entry of `memory`."""
MEMORY_BLOCKS = 32
LOSS_BLOCK = 32
"""Steps of one entry of `levels`, until there are so many that neighbours are joined."""
LOSS_BLOCKS = 64
LOWEST = 1e-6
"""Losses below count as this one: a logarithm has no zero."""
KEPT_VALIDATIONS = 32


@dataclass
class Open:
    """An alert that is raised and not cleared."""

    episode: int
    step: int
    is_muted: bool = False
    """Whether nobody was notified of it."""


@dataclass
class Signals:
    """Signals of one attempt. Losses and gradients are natural logarithms, so that a rule means the same for the loss
    of a language model, for one of preferences near zero, and for a perplexity.
    """

    step: int = 0
    num_steps: int = 0
    time: datetime | None = None
    """When the newest step ended, by its node."""
    heard_at: datetime | None = None
    """When it was heard, by Postgres."""
    began: datetime | None = None
    """When the first step ended."""
    began_epoch: float = 0.0
    epoch: float = 0.0
    losses: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Seconds between steps."""
    longest_gap: float = 0.0
    """Longest time between two steps of the attempt, in seconds; when they were heard makes no difference."""
    spikes: list[bool] = field(default_factory=list)
    """Which of the newest losses are outliers."""
    explosions: list[bool] = field(default_factory=list)
    overflows: list[bool] = field(default_factory=list)
    start: float | None = None
    """Level at the end of the warm-up."""
    best: float | None = None
    """Lowest level over a whole window."""
    usual_noise: float = 0.0
    above: int = 0
    """Steps in a row whose level is above the best by the limit of divergence."""
    block: list[float] = field(default_factory=list)
    block_steps: int = LOSS_BLOCK
    levels: list[float] = field(default_factory=list)
    """Levels of equal parts of the run, oldest first."""
    peak_rate: float = 0.0
    rate: float = 0.0
    memory: list[int] = field(default_factory=list)
    """Peak of memory at the end of each block of steps, oldest first."""
    speeds: list[float] = field(default_factory=list)
    usual_speed: float = 0.0
    uses: list[float] = field(default_factory=list)
    slow_since: datetime | None = None
    """When the step before the first slow one in a row ended."""
    slow_steps: int = 0
    validations: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Step and validation loss, by the name of the number."""
    checkpoint_step: int = -1
    open: dict[str, Open] = field(default_factory=dict)
    episodes: dict[str, int] = field(default_factory=dict)

    @property
    def is_warm(self) -> bool:
        return len(self.losses) >= WARM_UP

    @property
    def level(self) -> float:
        return median(self.losses[-LEVEL:])

    @property
    def smallest_rise(self) -> float:
        """Rise of the loss, as it is, below which no rule sees any: a tenth of the first level, at most a quarter."""
        return min(0.1 * exp(self.start or 0.0), 0.25)


def log_of(value: float) -> float:
    return log(max(value, LOWEST))


def add(signals: Signals, step: StepMetrics) -> None:
    """Append a step whose loss and gradient are finite."""
    _append(signals.losses, log_of(step.loss), WINDOW)
    _append(signals.gradients, log_of(step.grad_norm), WINDOW)
    if len(signals.losses) == WARM_UP and signals.start is None:
        signals.start = median(signals.losses)
    signals.peak_rate, signals.rate = max(signals.peak_rate, step.learning_rate), step.learning_rate
    _add_to_blocks(signals)
    if signals.num_steps % MEMORY_BLOCK == 0 and signals.num_steps > WARM_UP:
        _append(signals.memory, step.memory_bytes, MEMORY_BLOCKS)
    _append(signals.speeds, step.tokens_per_second, LEVEL)
    _append(signals.uses, step.device_utilization if step.device_utilization is not None else -1.0, LEVEL)
    if len(signals.speeds) == LEVEL and signals.num_steps % LEVEL == 0 and signals.is_warm:
        signals.usual_speed = max(signals.usual_speed, median(signals.speeds))


def pass_to(signals: Signals, step: StepMetrics, *, now: datetime) -> None:
    """Note that a step is there, whatever its numbers."""
    if signals.time is not None:
        gap = max(0.0, (step.time - signals.time).total_seconds())
        signals.longest_gap = max(signals.longest_gap, gap)
        _append(signals.gaps, gap, WINDOW)
    if signals.began is None:
        signals.began, signals.began_epoch = step.time, step.epoch
    signals.step, signals.time, signals.heard_at, signals.epoch = step.step, step.time, now, step.epoch
    signals.num_steps += 1


def are_finite(step: StepMetrics) -> bool:
    return isfinite(step.loss) and isfinite(step.grad_norm)


def _add_to_blocks(signals: Signals) -> None:
    signals.block.append(signals.losses[-1])
    if len(signals.block) < signals.block_steps:
        return
    signals.levels.append(midmean(signals.block))
    signals.block.clear()
    if len(signals.levels) == LOSS_BLOCKS:
        pairs = zip(signals.levels[::2], signals.levels[1::2], strict=True)
        signals.levels = [(first + second) / 2 for first, second in pairs]
        signals.block_steps *= 2


def _append(values: list[T], value: T, most: int) -> None:
    values.append(value)
    del values[:-most]


def newest(marks: Sequence[bool], count: int) -> int:
    """Return how many of the newest marks are set."""
    return sum(marks[-count:])


def mark(marks: list[bool], is_set: bool) -> None:
    _append(marks, is_set, LEVEL)
