"""Counting what happens to the rows of one file, and the verdict on the file."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from schemas.dataset import FileRole, RowProblem
from schemas.report import MAX_LISTED, Cluster, DroppedGroup, Duplicate, FileReport, Overlap
from schemas.specification import DatasetFormat, DatasetPolicy
from services.ingest.pipeline.contamination import Hit
from services.ingest.pipeline.duplicates import Kept, Match
from services.ingest.pipeline.examine import Accepted
from services.ingest.pipeline.rules import HARD_RULES, FileRefused
from shared.strict_json import cut

MAX_FIELDS = 100
MAX_EXCERPTS = 10_000
SHOWN_GROUPS = 3

Filter = Literal["exact_duplicates", "near_duplicates", "contamination"]
"""Filters that drop good rows, by the names that the policy gives them."""
NOUNS: dict[Filter, str] = {
    "exact_duplicates": "exact duplicates of earlier rows",
    "near_duplicates": "near duplicates of earlier rows",
    "contamination": "contaminated by what the gate asks",
}


@dataclass
class FileCounts:
    role: FileRole
    sha256: str
    format: DatasetFormat | None = None
    rows: int = 0
    blank_lines: int = 0
    has_bom: bool = False
    kept: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    problems: list[RowProblem] = field(default_factory=list)
    hard: RowProblem | None = None
    """The first row that breaks a rule no row may break."""
    ignored: Counter[str] = field(default_factory=Counter)
    exact: int = 0
    near: int = 0
    clusters: dict[Kept, list[Duplicate]] = field(default_factory=dict)
    listed_duplicates: int = 0
    dropped: Counter[Filter] = field(default_factory=Counter)
    groups: dict[Filter, Counter[str]] = field(default_factory=dict)
    """Number of dropped rows by what they repeat, for each filter."""
    excerpts: dict[Filter, Counter[str]] = field(default_factory=dict)
    kept_leaks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Sources of the contaminated rows that stay because the policy says so, by line."""
    not_fully_compared: int = 0
    contaminated: int = 0
    of_holdout: int = 0
    with_overlap: int = 0
    overlaps: list[Overlap] = field(default_factory=list)
    overlap_rows: Counter[str] = field(default_factory=Counter)
    contaminated_rows: Counter[str] = field(default_factory=Counter)

    @property
    def rejected(self) -> int:
        return self.rules.total()

    def reject(self, problem: RowProblem) -> None:
        self.rules[problem.rule] += 1
        if self.hard is None and problem.rule in HARD_RULES:
            self.hard = problem
        if len(self.problems) < MAX_LISTED:
            self.problems.append(problem)

    def accept_fields(self, row: Accepted) -> None:
        for name in row.ignored_fields:
            if name in self.ignored or len(self.ignored) < MAX_FIELDS:
                self.ignored[name] += 1

    def add_hits(self, row: Accepted, names: tuple[str, ...], *, limit: float) -> dict[str, Hit]:
        """Record what the row holds of each source. Return by name the hits whose share is `limit` or more."""
        hits = {name: hit for name, hit in zip(names, row.hits, strict=True) if hit is not None}
        self.with_overlap += bool(hits)
        for name, hit in hits.items():
            self.overlap_rows[name] += 1
            if len(self.overlaps) < MAX_LISTED:
                self.overlaps.append(
                    Overlap(
                        line=row.line,
                        source=name,
                        item=hit.item,
                        share=round(hit.share, 6),
                        is_contaminated=hit.share >= limit,
                    )
                )
        return {name: hit for name, hit in hits.items() if hit.share >= limit}

    def add_leaks(self, names: Iterable[str]) -> None:
        """Count a row by the sources that it gives away."""
        self.contaminated += 1
        self.contaminated_rows.update(list(names))

    def drop(self, row: Accepted, why: Filter, group: str) -> None:
        self.dropped[why] += 1
        groups, excerpts = (each.setdefault(why, Counter()) for each in (self.groups, self.excerpts))
        groups[group] += 1
        if row.excerpt in excerpts or len(excerpts) < MAX_EXCERPTS:
            excerpts[row.excerpt] += 1

    def add_duplicate(self, row: Accepted, match: Match) -> None:
        if match.kept.file == "holdout" and self.role != "holdout":
            self.of_holdout += 1
        elif match.is_exact:
            self.exact += 1
        else:
            self.near += 1
        if self.listed_duplicates < MAX_LISTED:
            self.listed_duplicates += 1
            duplicate = Duplicate(line=row.line, similarity=round(match.similarity, 6))
            self.clusters.setdefault(match.kept, []).append(duplicate)

    def report(self) -> FileReport:
        return FileReport(
            role=self.role,
            sha256=self.sha256,
            format=self.format,
            rows=self.rows,
            blank_lines=self.blank_lines,
            has_bom=self.has_bom,
            kept_rows=self.kept,
            rejected_rows=self.rejected,
            rejected_by_rule=dict(sorted(self.rules.items())),
            problems=tuple(self.problems),
            ignored_fields=dict(sorted(self.ignored.items())),
            exact_duplicates=self.exact,
            near_duplicates=self.near,
            clusters=tuple(
                Cluster(kept_file=kept.file, kept_line=kept.line, duplicates=tuple(duplicates))
                for kept, duplicates in self.clusters.items()
            ),
            rows_not_fully_compared=self.not_fully_compared,
            dropped_rows=dict(sorted(self.dropped.items())),
            dropped_groups=self._dropped_groups(),
            contaminated_rows=self.contaminated,
            holdout_duplicates=self.of_holdout,
            rows_with_overlap=self.with_overlap,
            overlaps=tuple(self.overlaps),
        )

    def _dropped_groups(self) -> tuple[DroppedGroup, ...]:
        return tuple(
            DroppedGroup(filter=why, repeats=group, rows=count)
            for why, groups in sorted(self.groups.items())
            for group, count in largest(groups)
        )


def largest(counts: Counter[str], at_most: int = SHOWN_GROUPS) -> list[tuple[str, int]]:
    """Return the most frequent, of equals the first by name: the order in which they came does not matter."""
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:at_most]


def refusal_of(counts: FileCounts, policy: DatasetPolicy) -> FileRefused | None:
    """Return why the file as a whole is not accepted, once all its rows are counted; None where it is."""
    name = counts.role.replace("_", " ")
    most = ", ".join(f"{rule} {count}" for rule, count in counts.rules.most_common(3))
    if not counts.rows:
        return FileRefused("empty", f"the {name} file has no rows")
    if counts.format is None:
        return FileRefused(
            "wrong_format", f"no row of the {name} file has the fields of a known format ({most})"
        )
    if counts.hard is not None:
        return _hard_refusal(counts, counts.hard)
    bad = f"{counts.rejected} of {counts.rows} rows of the {name} file are bad ({most})"
    if counts.rejected and (policy.bad_rows == "reject_file" or counts.role == "holdout"):
        return FileRefused("bad_rows", bad)
    share = counts.rejected / counts.rows
    if share > policy.max_bad_ratio:
        limit = f"{share:.1%}, at most {policy.max_bad_ratio:.1%} (policy.max_bad_ratio)"
        return FileRefused("too_many_bad_rows", f"{bad}: {limit}")
    if counts.contaminated and policy.contamination == "reject_file":
        return FileRefused(
            "contaminated",
            f"{counts.contaminated} rows of the {name} file stand in a benchmark or the holdout",
        )
    return _too_many_dropped(counts, policy) or _nothing_left(counts)


def _hard_refusal(counts: FileCounts, first: RowProblem) -> FileRefused:
    count, name = counts.rules[first.rule], counts.role.replace("_", " ")
    return FileRefused(
        first.rule,
        f"line {first.line} of the {name} file, {first.field}: {first.found}; "
        f"{count} of {counts.rows} rows: {first.fix}",
    )


def _too_many_dropped(counts: FileCounts, policy: DatasetPolicy) -> FileRefused | None:
    """Refuse a file of which a filter takes much: the filter has met what it was not made for, and the reason is
    said."""
    messages = [
        _dropped_sentence(counts, why, policy.max_dropped_ratio)
        for why in NOUNS
        if counts.dropped[why] > policy.max_dropped_ratio * counts.rows
    ]
    return FileRefused("too_many_dropped", "; ".join(messages)) if messages else None


def _dropped_sentence(counts: FileCounts, why: Filter, limit: float) -> str:
    count, name = counts.dropped[why], counts.role.replace("_", " ")
    groups = ", ".join(f"{rows} rows like {group}" for group, rows in largest(counts.groups[why]))
    ((excerpt, rows),) = largest(counts.excerpts[why], at_most=1)
    return (
        f"{count} of {counts.rows} rows of the {name} file are {NOUNS[why]} (policy.{why}): "
        f"{count / counts.rows:.1%}, at most {limit:.1%} (policy.max_dropped_ratio). "
        f"Largest groups: {groups}. Most frequent shared text, in {rows} rows: {cut(repr(excerpt))}"
    )


def _nothing_left(counts: FileCounts) -> FileRefused | None:
    if counts.kept:
        return None
    name = counts.role.replace("_", " ")
    return FileRefused(
        "empty",
        f"no row of the {name} file is left: of {counts.rows} rows {counts.rejected} are bad, "
        f"{counts.exact + counts.near} duplicates, {counts.contaminated} contaminated",
    )
