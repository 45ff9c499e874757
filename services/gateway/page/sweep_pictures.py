"""A sweep as pictures: losses and the best so far, a line for each trial over all axes, what each parameter explains.

Pure: where things are, to be drawn by a template. Beside each picture is a table of the same numbers.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log

from schemas.sweep import Choices, Parameter, Scalar, TrialState
from services.gateway.page import formats
from services.gateway.sweeps import TrialRow

WIDTH, HEIGHT = 520, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 28
AXIS_GAP, AXES_HEIGHT = 200, 260
SIDE, AXES_TOP, AXES_BOTTOM = 80, 34, 24
BEST_SHARE = 5
"""One of so many trials is among the best, whose lines are drawn strong."""
GROUPS = 4
"""Groups of a number's values, of equal counts, whose losses are compared."""
FEWEST_TRIALS = 10
"""Trials from which on it is shown what a parameter explains."""
BAR = 240


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    kind: str
    """`completed` or `pruned`."""
    title: str


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Course:
    """Loss of each trial, by number, and the lowest so far as a line."""

    dots: tuple[Dot, ...]
    path: str
    losses: tuple[Tick, ...]
    numbers: tuple[Tick, ...]
    words: str


@dataclass(frozen=True)
class Axis:
    x: float
    name: str
    ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class Line:
    points: str
    kind: str
    """`best`, `other` or `pruned`."""
    title: str


@dataclass(frozen=True)
class Parallel:
    width: int
    axes: tuple[Axis, ...]
    lines: tuple[Line, ...]
    words: str


@dataclass(frozen=True)
class Importance:
    name: str
    share: float
    width: float


def measured(trials: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the trials with a loss, completed or pruned."""
    states = (TrialState.COMPLETED, TrialState.PRUNED)
    return [each for each in trials if each.state in states and each.valid_loss is not None]


def value(scalar: Scalar) -> str:
    """Return a value as people write it: `2e-4`."""
    if isinstance(scalar, bool):
        return "yes" if scalar else "no"
    if isinstance(scalar, float):
        return formats.learning_rate(scalar) if 0 < abs(scalar) < 0.01 else f"{scalar:.4g}"
    return str(scalar)


def course(trials: Sequence[TrialRow]) -> Course | None:
    """Return None where no trial has a loss yet."""
    known = measured(trials)
    if not known:
        return None
    losses = [_loss(each) for each in known]
    low, high = _widened(min(losses), max(losses))
    last = max(1, *(each.number for each in known))

    def x(number: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * number / last

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    dots = tuple(
        Dot(round(x(each.number), 1), round(y(_loss(each)), 1), each.state.value, _title(each))
        for each in known
    )
    steps: list[str] = []
    best: float | None = None
    for each in known:
        if each.state is TrialState.COMPLETED and (best is None or _loss(each) < best):
            steps.append(
                f"{'H' if steps else 'M'}{x(each.number):.1f}" + ("" if steps else f" {y(_loss(each)):.1f}")
            )
            steps.append(f"V{y(_loss(each)):.1f}")
            best = _loss(each)
    path = " ".join([*steps, f"H{x(last):.1f}"]) if steps else ""
    return Course(
        dots,
        path,
        tuple(Tick(round(y(loss), 1), formats.loss(loss)) for loss in (low, (low + high) / 2, high)),
        tuple(Tick(round(x(number), 1), str(number)) for number in sorted({0, last // 2, last})),
        f"validation loss of {len(known)} trials; the lowest so far is {formats.loss(best)}",
    )


def parallel(parameters: dict[str, Parameter], trials: Sequence[TrialRow]) -> Parallel | None:
    """Return None where no trial has a loss yet."""
    known = measured(trials)
    if not known:
        return None
    losses = [_loss(each) for each in known]
    low, high = _widened(min(losses), max(losses))
    width = 2 * SIDE + AXIS_GAP * len(parameters)
    axes = []
    for place, (name, parameter) in enumerate(parameters.items()):
        axes.append(Axis(SIDE + AXIS_GAP * place, name, _ticks(parameter)))
    loss_ticks = tuple(Tick(_y(share), formats.loss(low + share * (high - low))) for share in (0.0, 0.5, 1.0))
    axes.append(Axis(width - SIDE, "loss", loss_ticks))
    completed = sorted(_loss(each) for each in known if each.state is TrialState.COMPLETED)
    limit = completed[max(0, len(completed) // BEST_SHARE - 1)] if completed else None

    def line(row: TrialRow) -> Line:
        places = [share_of(parameter, row.parameters[name]) for name, parameter in parameters.items()]
        shares = [*places, (_loss(row) - low) / (high - low)]
        points = " ".join(f"{axis.x:.0f},{_y(share)}" for axis, share in zip(axes, shares, strict=True))
        is_best = limit is not None and _loss(row) <= limit
        kind = "pruned" if row.state is TrialState.PRUNED else "best" if is_best else "other"
        return Line(points, kind, _title(row))

    # What is drawn last is on top.
    lines = sorted(map(line, known), key=lambda each: ("pruned", "other", "best").index(each.kind))
    return Parallel(
        width, tuple(axes), tuple(lines), f"{len(known)} trials over {len(parameters)} parameters"
    )


def share_of(parameter: Parameter, scalar: Scalar) -> float:
    """Return where a value is between the least, 0, and the greatest, 1; in logarithms where it is searched so."""
    if isinstance(parameter, Choices):
        choices = parameter.choices
        return choices.index(scalar) / (len(choices) - 1) if len(choices) > 1 else 0.5
    low, high, number = float(parameter.low), float(parameter.high), float(scalar)
    if parameter.log:
        low, high, number = log(low), log(high), log(number)
    return (number - low) / (high - low)


def _ticks(parameter: Parameter) -> tuple[Tick, ...]:
    if isinstance(parameter, Choices):
        shown = (
            parameter.choices
            if len(parameter.choices) <= 8
            else (parameter.choices[0], parameter.choices[-1])
        )
        return tuple(Tick(_y(share_of(parameter, each)), value(each)) for each in shown)
    return tuple(
        Tick(_y(share), value(each)) for share, each in ((0.0, parameter.low), (1.0, parameter.high))
    )


def _y(share: float) -> float:
    return round(AXES_HEIGHT - AXES_BOTTOM - share * (AXES_HEIGHT - AXES_TOP - AXES_BOTTOM), 1)


def importances(parameters: dict[str, Parameter], trials: Sequence[TrialRow]) -> list[Importance]:
    """Return for each parameter how much of the losses' variance its groups of values explain alone, most first.

    The share is that of an analysis of variance with one factor, without what chance alone would explain (Kelley's
    epsilon squared, 1935). None where too few trials were trained to their end.
    """
    known = [each for each in measured(trials) if each.state is TrialState.COMPLETED]
    if len(known) < FEWEST_TRIALS:
        return []
    shares = {name: explained(_groups(name, parameter, known)) for name, parameter in parameters.items()}
    return [
        Importance(name, share, round(BAR * share, 1))
        for name, share in sorted(shares.items(), key=lambda each: -each[1])
    ]


def explained(groups: Sequence[Sequence[float]]) -> float:
    """Return the share of the variance that is between the groups, from 0 to 1."""
    every = [loss for group in groups for loss in group]
    mean = sum(every) / len(every)
    total = sum((loss - mean) ** 2 for loss in every)
    if total == 0 or len(groups) < 2 or len(every) <= len(groups):
        return 0.0
    between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups)
    by_chance = (len(groups) - 1) * (total - between) / (len(every) - len(groups))
    return min(1.0, max(0.0, (between - by_chance) / total))


def _groups(name: str, parameter: Parameter, known: Sequence[TrialRow]) -> list[list[float]]:
    by_value: dict[Scalar, list[float]] = defaultdict(list)
    for row in known:
        by_value[row.parameters[name]].append(_loss(row))
    if isinstance(parameter, Choices) or len(by_value) <= GROUPS:
        return list(by_value.values())
    ordered = sorted(known, key=lambda row: float(row.parameters[name]))
    cuts = [floor(len(ordered) * part / GROUPS) for part in range(GROUPS + 1)]
    return [[_loss(row) for row in ordered[begin:end]] for begin, end in pairwise(cuts)]


def _loss(row: TrialRow) -> float:
    assert row.valid_loss is not None, "it was measured"
    return row.valid_loss


def _widened(low: float, high: float) -> tuple[float, float]:
    """Equal losses are drawn in the middle."""
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _title(row: TrialRow) -> str:
    values = ", ".join(f"{name} {value(each)}" for name, each in row.parameters.items())
    return f"trial {row.number}, {row.state.value}: loss {formats.loss(row.valid_loss)}; {values}"
