"""The report on the rows of a dataset, in words and as lengths of bars. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.dataset import RowProblem
from schemas.report import Cluster, DatasetReport, FileReport, Overlap
from services.gateway import model
from services.gateway.page.views import Badge

STATES: Mapping[str, Badge] = {
    "validating": Badge("validating", "active", "dashed-ring"),
    "ready": Badge("ready", "good", "check"),
    "rejected": Badge("rejected", "bad", "cross"),
    "deleted": Badge("deleted", "idle", "slashed-ring"),
}
FILTERS: Mapping[str, str] = {
    "exact_duplicates": "equal to an earlier row",
    "near_duplicates": "nearly equal to an earlier row",
    "contamination": "holds an item that the gate asks",
}
ROWS = 20
"""Rows of a list on one page."""
CLUSTERS = 20


@dataclass(frozen=True)
class DatasetView:
    id: str
    badge: Badge
    sentence: str
    row: model.Dataset


def dataset_view(row: model.Dataset) -> DatasetView:
    unknown = Badge(row.state, "idle", "ring")
    return DatasetView(row.dataset_id, STATES.get(row.state, unknown), _sentence(row), row)


def _sentence(row: model.Dataset) -> str:
    match row.state:
        case "validating":
            return "its rows are being looked at"
        case "ready":
            return row.detail.counts.summary if row.detail.counts else "its version exists"
        case "deleted":
            return "its bytes are deleted; jobs and models that name it stay"
        case _:
            return row.detail.message or row.detail.code or ""


@dataclass(frozen=True)
class Part:
    """Of the rows of a file, how many became what."""

    name: str
    words: str
    count: int
    tone: str


def parts(file: FileReport) -> list[Part]:
    """All rows of the file, each once."""
    dropped = [
        Part(name, FILTERS.get(name, name.replace("_", " ")), count, "warn")
        for name, count in file.dropped_rows.items()
        if count
    ]
    kept = Part("kept", "kept", file.kept_rows, "good")
    rejected = Part("rejected", "break a rule", file.rejected_rows, "bad")
    return [part for part in (kept, rejected, *dropped) if part.count or part is kept]


@dataclass(frozen=True)
class RuleView:
    name: str
    count: int
    fix: str
    example: str


def rules(file: FileReport) -> list[RuleView]:
    """Rules that rows break, the most broken first, each with what to do about it."""
    first: dict[str, RowProblem] = {}
    for problem in file.problems:
        first.setdefault(problem.rule, problem)
    return [
        RuleView(
            name, count, first[name].fix if name in first else "", first[name].found if name in first else ""
        )
        for name, count in sorted(file.rejected_by_rule.items(), key=lambda each: (-each[1], each[0]))
    ]


@dataclass(frozen=True)
class Listed:
    """A page of rejected rows."""

    problems: Sequence[RowProblem]
    begin: int
    total: int
    """Rows that are in the report and fit the filter."""

    @property
    def next(self) -> int | None:
        end = self.begin + len(self.problems)
        return end if end < self.total else None


def listed(file: FileReport, rule: str, begin: int) -> Listed:
    fitting = [problem for problem in file.problems if rule in ("", problem.rule)]
    return Listed(fitting[begin : begin + ROWS], begin, len(fitting))


@dataclass(frozen=True)
class LengthBar:
    low: int
    high: int
    rows: int
    share: float
    """Of the longest bar."""
    is_too_long: bool


def length_bars(report: DatasetReport) -> list[LengthBar]:
    """Rows by their tokens; each bar is twice as wide as the one before."""
    lengths = report.lengths
    if lengths is None:
        return []
    longest = max(lengths.rows, default=0) or 1
    return [
        LengthBar(low + 1, high, rows, rows / longest, low >= report.max_seq_length)
        for low, high, rows in zip(lengths.edges, lengths.edges[1:], lengths.rows, strict=False)
    ]


def contaminated(file: FileReport) -> list[Overlap]:
    """The contaminated rows first, then those that hold the largest share of an item."""
    return sorted(file.overlaps, key=lambda each: (not each.is_contaminated, -each.share, each.line))[:ROWS]


def clusters(file: FileReport) -> list[Cluster]:
    """The largest groups of rows that repeat one row."""
    return sorted(file.clusters, key=lambda each: (-len(each.duplicates), each.kept_line))[:CLUSTERS]
