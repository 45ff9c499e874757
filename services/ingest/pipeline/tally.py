"""Counting what happens to the rows of one file, and the verdict on the file."""

from collections import Counter
from dataclasses import dataclass, field

from schemas.dataset import FileRole, RowProblem
from schemas.specification import DatasetFormat, DatasetPolicy
from services.ingest.pipeline.duplicates import Kept, Match
from services.ingest.pipeline.examine import Accepted
from services.ingest.pipeline.rules import FileRefused
from services.ingest.report import MAX_LISTED, Cluster, Duplicate, FileReport, Overlap

MAX_FIELDS = 100


@dataclass
class FileTally:
    role: FileRole
    sha256: str
    format: DatasetFormat | None = None
    rows: int = 0
    blank_lines: int = 0
    has_bom: bool = False
    kept: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    problems: list[RowProblem] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    exact: int = 0
    near: int = 0
    clusters: dict[Kept, list[Duplicate]] = field(default_factory=dict)
    listed_duplicates: int = 0
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
        if len(self.problems) < MAX_LISTED:
            self.problems.append(problem)

    def accept_fields(self, row: Accepted) -> None:
        for name in row.ignored_fields:
            if name in self.ignored or len(self.ignored) < MAX_FIELDS:
                self.ignored[name] += 1

    def add_overlaps(self, row: Accepted, names: tuple[str, ...], *, above: float) -> bool:
        """Record the row's shares; True where one of them is above the limit."""
        hits = [(name, share) for name, share in zip(names, row.shares, strict=True) if share > 0]
        self.with_overlap += bool(hits)
        for name, share in hits:
            self.overlap_rows[name] += 1
            self.contaminated_rows[name] += share > above
            if len(self.overlaps) < MAX_LISTED:
                self.overlaps.append(
                    Overlap(line=row.line, source=name, share=round(share, 6), is_contaminated=share > above)
                )
        return any(share > above for _, share in hits)

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
            contaminated_rows=self.contaminated,
            holdout_duplicates=self.of_holdout,
            rows_with_overlap=self.with_overlap,
            overlaps=tuple(self.overlaps),
        )


def refusal_of(tally: FileTally, policy: DatasetPolicy) -> FileRefused | None:
    """Why the file as a whole is not accepted, once all its rows are counted."""
    name = tally.role.replace("_", " ")
    share = tally.rejected / tally.rows if tally.rows else 0.0
    most = ", ".join(f"{rule} {count}" for rule, count in tally.rules.most_common(3))
    if not tally.rows:
        return FileRefused("empty", f"the {name} file has no rows")
    if tally.format is None:
        return FileRefused(
            "wrong_format", f"no row of the {name} file has the fields of a known format ({most})"
        )
    if tally.rejected and (policy.bad_rows == "reject_file" or tally.role == "holdout"):
        return FileRefused(
            "bad_rows", f"{tally.rejected} of {tally.rows} rows of the {name} file are bad ({most})"
        )
    if share > policy.max_bad_share:
        return FileRefused(
            "too_many_bad_rows",
            f"{tally.rejected} of {tally.rows} rows of the {name} file are bad ({most}): "
            f"{share:.1%}, at most {policy.max_bad_share:.1%} (policy.max_bad_share)",
        )
    if tally.contaminated and policy.contamination == "reject_file":
        return FileRefused(
            "contaminated",
            f"{tally.contaminated} rows of the {name} file stand in a benchmark or the holdout",
        )
    if not tally.kept:
        repeated = tally.exact + tally.near
        return FileRefused(
            "empty",
            f"no row of the {name} file is left: of {tally.rows} rows {tally.rejected} are bad, "
            f"{repeated} duplicates, {tally.contaminated} contaminated",
        )
    return None
