"""How far a gate is, from the scoring child's reports, and when that is worth an event."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from services.evaluator.scoring.reports import PartProgressed, Report

LOADING = "loading"
SECONDS_BETWEEN_EVENTS = 5.0

Key = tuple[str, str]
"""Name of a part in the order, and the side on which it is scored."""


@dataclass(frozen=True)
class Progress:
    """The fields of EvalProgressed."""

    activity: str = LOADING
    suite: str = ""
    side: str | None = None
    items_done: int = 0
    items_total: int | None = None
    seconds_left: float | None = None

    @property
    def position(self) -> tuple[str, str, str | None]:
        return self.activity, self.suite, self.side


@dataclass(frozen=True)
class Meter:
    """What has been scored so far, and how long it took. Times are seconds of a clock that never goes back."""

    rows: Mapping[Key, int]
    """Number of rows to be scored, of each part and side."""
    at: float
    """Time at which the child last reported, or was started."""
    done: Mapping[Key, float] = field(default_factory=dict)
    """Number of rows scored so far, worked out from the share of each part that is done."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent on each check."""
    progress: Progress = Progress()

    def after(self, report: Report, *, now: float) -> "Meter":
        """Take in a report. One of no part, such as that the model is loaded, moves the clock alone."""
        if not isinstance(report, PartProgressed):
            return replace(self, at=now)
        part, items, total = report.part, report.done, report.total
        sides = [side for name, side in self.rows if name == part]
        side = report.side if report.side in sides else None
        check, _, suite = part.partition(":")
        share = min(1.0, items / total) if total else 0.0
        keys = [(part, each) for each in sides if side in (None, each)]
        done = {**self.done, **{key: self.rows[key] * share for key in keys}}
        spent = {**self.spent, check: self.spent.get(check, 0.0) + now - self.at}
        left = _seconds_left(self.rows, done, spent)
        progress = Progress(check, suite, side, items, total or None, left)
        return replace(self, at=now, done=done, spent=spent, progress=progress)


def is_due(published: Progress | None, progress: Progress, *, seconds_since: float) -> bool:
    """Return whether progress is worth an event: at once for another part, else every few seconds at most."""
    if published is None or published.position != progress.position:
        return True
    return published != progress and seconds_since >= SECONDS_BETWEEN_EVENTS


def _seconds_left(
    rows: Mapping[Key, int], done: Mapping[Key, float], spent: Mapping[str, float]
) -> float | None:
    """Estimate by the pace of each check, for one that has not begun by that of all; None where none has begun."""
    scored: dict[str, float] = defaultdict(float)
    for (part, _), count in done.items():
        scored[_check(part)] += count
    paces = {check: spent[check] / count for check, count in scored.items() if count}
    if not paces:
        return None
    usual = sum(spent[check] for check in paces) / sum(scored.values())
    return sum((count - done.get(key, 0.0)) * paces.get(_check(key[0]), usual) for key, count in rows.items())


def _check(part: str) -> str:
    return part.partition(":")[0]
