"""A verdict as a picture and in words: intervals to scale, and two answers with what differs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import ceil, floor, log10
from typing import Literal

from schemas.evaluation import CheckResult, Criterion
from services.gateway.page import formats
from services.gateway.page.views import GATES, Badge

WIDTH, MARGIN = 220, 8
TICKS = 3
"""About how many numbers are at an axis."""
TOLERANCE = 1e-9
"""Of a step: 0.7 is seven tenths, whatever a quotient says."""
MAX_WORDS = 400
"""Words of an answer that are compared one by one; longer answers are shown as they are."""


@dataclass(frozen=True)
class Scale:
    """What an axis reaches over. Numbers whose smaller ones are better are on it with the other sign, so that better
    is on the right in each row."""

    least: float
    greatest: float

    def place(self, goodness: float) -> float:
        share = (goodness - self.least) / ((self.greatest - self.least) or 1.0)
        return round(MARGIN + share * (WIDTH - 2 * MARGIN), 1)


@dataclass(frozen=True)
class Tick:
    at: float
    text: str
    anchor: str
    """`start`, `middle` or `end`: where the text is beside the place, so that none is cut."""


@dataclass(frozen=True)
class Picture:
    """Where things are from left, which is worse, to right, which is better."""

    low: float
    high: float
    point: float
    limit: float
    zero: float | None
    """No change; None where the number is no change."""
    ticks: tuple[Tick, ...]
    words: str


@dataclass(frozen=True)
class CriterionView:
    name: str
    metric: str
    badge: Badge
    count: str
    base: str
    candidate: str
    change: str
    rule: str
    needed: str
    """How many items would do, where they are too few."""
    picture: Picture


@dataclass(frozen=True)
class CheckView:
    name: str
    badge: Badge
    reason: str
    criteria: tuple[CriterionView, ...]


def check_views(checks: Sequence[CheckResult]) -> list[CheckView]:
    """The worst first: what failed, then what is not decided. Numbers of one unit have one axis."""
    order = ("failed", "inconclusive", "passed", "not_requested")
    scales = scales_of([criterion for check in checks for criterion in check.criteria])
    return [
        CheckView(
            check.check.replace("_", " "),
            GATES[check.outcome],
            check.reason,
            tuple(criterion_view(each, scales[unit_of(each)]) for each in check.criteria),
        )
        for check in sorted(checks, key=lambda check: order.index(check.outcome))
    ]


def criterion_view(criterion: Criterion, scale: Scale) -> CriterionView:
    outcome = criterion.outcome or ("passed" if criterion.passed else "failed")
    sign = "at least" if criterion.higher_is_better else "at most"
    needed = "" if criterion.needed is None else f"about {formats.plural(criterion.needed, 'item')} would do"
    return CriterionView(
        name=criterion.name,
        metric=criterion.metric.replace("_", " "),
        badge=GATES[outcome],
        count=formats.whole(criterion.count),
        base=formats.NONE if criterion.baseline is None else number(criterion.metric, criterion.baseline),
        candidate=number(criterion.metric, criterion.value),
        change=_change(criterion),
        rule=f"{sign} {number(criterion.metric, criterion.threshold)}",
        needed=needed,
        picture=picture(criterion, scale),
    )


Kind = Literal["points", "share", "number"]


def kind_of(metric: str) -> Kind:
    """How numbers of a metric are written: points of a hundred, shares as percentages, or anything else."""
    if "point" in metric or "percent" in metric:
        return "points"
    return "share" if metric.endswith(("rate", "share")) else "number"


def number(metric: str, value: float) -> str:
    """Points have one digit, shares are percentages, anything else has three."""
    match kind_of(metric):
        case "points":
            return f"{value:.1f}"
        case "share":
            return formats.percent(value)
        case _:
            return f"{value:.3f}"


def _change(criterion: Criterion) -> str:
    interval = criterion.change_interval
    if interval is not None and criterion.baseline is not None:
        change, low, high = criterion.value - criterion.baseline, interval.low, interval.high
        shown = [_signed(criterion.metric, value) for value in (change, low, high)]
        return "{} [{}, {}]".format(*shown)
    if criterion.interval is None:
        return formats.NONE
    ends = (criterion.interval.low, criterion.interval.high)
    return "[{}, {}]".format(*(number(criterion.metric, end) for end in ends))


def _signed(metric: str, value: float) -> str:
    return f"{'+' if value >= 0 else ''}{number(metric, value)}"


Unit = tuple[Kind, bool]
"""Kind of a number, and whether it is a change beside the base."""


def unit_of(criterion: Criterion) -> Unit:
    is_change = criterion.change_interval is not None and criterion.baseline is not None
    return kind_of(criterion.metric), is_change


def scales_of(criteria: Sequence[Criterion]) -> dict[Unit, Scale]:
    """Return the axis of each unit, which reaches over all that is drawn on it."""
    drawn: dict[Unit, list[float]] = {}
    for criterion in criteria:
        low, high, center, limit, zero = _drawn(criterion)
        sign = _sign(criterion)
        values = [sign * each for each in (low, high, center, limit, zero) if each is not None]
        drawn.setdefault(unit_of(criterion), []).extend(values)
    return {unit: Scale(min(values), max(values)) for unit, values in drawn.items()}


def _sign(criterion: Criterion) -> int:
    return 1 if criterion.higher_is_better else -1


def _drawn(criterion: Criterion) -> tuple[float, float, float, float, float | None]:
    """Low and high end, the number, what the rule asks for and zero: of the change beside the base where that is
    known, else of the number itself, which has no zero."""
    change, base = criterion.change_interval, criterion.baseline
    if change is not None and base is not None:
        return change.low, change.high, criterion.value - base, criterion.threshold - base, 0.0
    low, high = criterion.value, criterion.value
    if criterion.interval:
        low, high = criterion.interval.low, criterion.interval.high
    return low, high, criterion.value, criterion.threshold, None


def picture(criterion: Criterion, scale: Scale) -> Picture:
    low, high, center, limit, zero = _drawn(criterion)
    sign = _sign(criterion)
    left, right = sorted((scale.place(sign * low), scale.place(sign * high)))
    words = f"{_change(criterion)}, needs {number(criterion.metric, criterion.threshold)}"
    return Picture(
        left,
        right,
        point=scale.place(sign * center),
        limit=scale.place(sign * limit),
        zero=None if zero is None else scale.place(zero),
        ticks=_ticks(unit_of(criterion), scale, sign),
        words=words,
    )


def _ticks(unit: Unit, scale: Scale, sign: int) -> tuple[Tick, ...]:
    """Round numbers along the axis, a change with its sign."""
    kind, is_change = unit
    span = scale.greatest - scale.least
    if not span:
        return ()
    power = 10.0 ** floor(log10(span / TICKS))
    step = power * next(factor for factor in (1, 2, 5, 10) if power * factor >= span / TICKS)
    first, last = ceil(scale.least / step - TOLERANCE), floor(scale.greatest / step + TOLERANCE)
    ticks = []
    for place in range(first, last + 1):
        at, value = scale.place(place * step), sign * place * step
        shown = value * 100 if kind == "share" else value
        text = f"{shown:+.6g}" if is_change and place else f"{shown + 0.0:.6g}"
        unit_word = {"points": " pt", "share": " %", "number": ""}[kind]
        anchor = "start" if at < WIDTH / 8 else "end" if at > WIDTH * 7 / 8 else "middle"
        ticks.append(Tick(at, f"{text}{unit_word}", anchor))
    return tuple(ticks)


Part = tuple[str, bool]
"""Text, and whether the other answer has it not."""


def differing(base: str | None, candidate: str | None) -> tuple[list[Part], list[Part]]:
    """Both answers, word by word, with what only one of them has."""
    old, new = ((answer or "").split(" ") for answer in (base, candidate))
    if max(len(old), len(new)) > MAX_WORDS:
        return [(base or "", False)], [(candidate or "", False)]
    left: list[Part] = []
    right: list[Part] = []
    for kind, begin, end, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for parts, side, first, last in ((left, old, begin, end), (right, new, start, stop)):
            if first < last:
                parts.append((" ".join(side[first:last]), kind != "equal"))
    return left, right
