"""A verdict as a picture and in words: intervals to scale, and two answers with what differs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from schemas.evaluation import CheckResult, Criterion
from services.gateway.page import formats
from services.gateway.page.views import GATES, Badge

WIDTH, MARGIN = 220, 8
MAX_WORDS = 400
"""Words of an answer that are compared one by one; longer answers are shown as they are."""


@dataclass(frozen=True)
class Picture:
    """Where things are from left, which is worse, to right, which is better."""

    low: float
    high: float
    point: float
    limit: float
    zero: float | None
    """No change; None where the number is no change."""
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
    """The worst first: what failed, then what is not decided."""
    order = ("failed", "inconclusive", "passed", "not_requested")
    return [
        CheckView(
            check.check.replace("_", " "),
            GATES[check.outcome],
            check.reason,
            tuple(map(criterion_view, check.criteria)),
        )
        for check in sorted(checks, key=lambda check: order.index(check.outcome))
    ]


def criterion_view(criterion: Criterion) -> CriterionView:
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
        picture=picture(criterion),
    )


def number(metric: str, value: float) -> str:
    """Points have one digit, shares are percentages, anything else has three."""
    if "point" in metric or "percent" in metric:
        return f"{value:.1f}"
    return formats.percent(value) if metric.endswith(("rate", "share")) else f"{value:.3f}"


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


def picture(criterion: Criterion) -> Picture:
    """Of the change beside the base where that is known, else of the number itself."""
    interval, is_change = criterion.change_interval, False
    center, limit = criterion.value, criterion.threshold
    if interval is not None and criterion.baseline is not None:
        center, limit, is_change = center - criterion.baseline, limit - criterion.baseline, True
    else:
        interval = criterion.interval
    low, high = (interval.low, interval.high) if interval else (center, center)
    zero = 0.0 if is_change else None
    shown = [low, high, center, limit, *([zero] if zero is not None else [])]
    least, span = min(shown), (max(shown) - min(shown)) or 1.0

    def place(value: float) -> float:
        share = (value - least) / span
        share = share if criterion.higher_is_better else 1 - share
        return round(MARGIN + share * (WIDTH - 2 * MARGIN), 1)

    left, right = sorted((place(low), place(high)))
    words = f"{_change(criterion)}, needs {number(criterion.metric, criterion.threshold)}"
    return Picture(left, right, place(center), place(limit), None if zero is None else place(zero), words)


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
