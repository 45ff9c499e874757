"""`datasets/<version>/report.json`: what was found in the files of a dataset, typed and deterministic.

Lists are capped at MAX_LISTED entries in order of lines; the totals beside them count everything.
"""

from typing import Literal

from schemas.base import Count, Sha256, Value
from schemas.dataset import FileRole, RowProblem
from schemas.specification import DatasetFormat, DatasetPolicy, Method

MAX_LISTED = 10_000
MAX_IN_EVENT = 20

SourceKind = Literal["benchmark", "suite", "holdout"]


class Duplicate(Value):
    line: int
    similarity: float
    """Similarity of the prompts, to the kept row; 1.0 for rows whose folded texts are equal."""


class Cluster(Value):
    """Rows that repeat an earlier row, which stays."""

    kept_file: FileRole
    kept_line: int
    duplicates: tuple[Duplicate, ...]


class DroppedGroup(Value):
    """Rows that a filter drops because they repeat one thing: a kept row, or an item of a source."""

    filter: Literal["exact_duplicates", "near_duplicates", "contamination"]
    repeats: str
    rows: Count


class Overlap(Value):
    """A row that holds at least one 13-gram of an item of a source. `item` is the one that it holds most of."""

    line: int
    source: str
    item: Count
    """1-based line in the source's file."""
    share: float
    """Share of the item's 13-grams that the row holds, boilerplate left out."""
    is_contaminated: bool


class FileReport(Value):
    role: FileRole
    sha256: Sha256
    format: DatasetFormat | None
    rows: Count
    """Number of lines that are not blank."""
    blank_lines: Count
    has_bom: bool
    kept_rows: Count
    rejected_rows: Count
    rejected_by_rule: dict[str, Count]
    problems: tuple[RowProblem, ...]
    ignored_fields: dict[str, Count]
    """Fields that no rule knows, with the number of rows that have them."""
    exact_duplicates: Count
    near_duplicates: Count
    clusters: tuple[Cluster, ...]
    rows_not_fully_compared: Count
    """Number of rows with so many similar ones that only the first of them were compared."""
    dropped_rows: dict[str, Count]
    """Number of good rows that are not kept, by the filter that dropped them."""
    dropped_groups: tuple[DroppedGroup, ...]
    """Largest groups of dropped rows of each filter."""
    contaminated_rows: Count
    holdout_duplicates: Count
    """Number of contaminated rows that repeat a holdout row."""
    rows_with_overlap: Count
    overlaps: tuple[Overlap, ...]


class SourceReport(Value):
    """A benchmark, safety suite or holdout that the rows were checked against."""

    name: str
    kind: SourceKind
    digest: Sha256
    grams: Count
    rows_with_overlap: Count
    contaminated_rows: Count


class LengthHistogram(Value):
    """Tokens per training row. Bucket i counts rows of edges[i] < tokens <= edges[i+1]."""

    edges: tuple[Count, ...]
    rows: tuple[Count, ...]
    minimum: Count
    median: float
    p95: float
    maximum: Count
    mean: float


class PackingReport(Value):
    windows: Count
    max_seq_length: Count
    tokens: Count
    fill_ratio: float
    """Share of the windows' room that tokens fill: tokens / (windows x max_seq_length)."""
    fewest_windows: Count
    """Number of windows that no packing can do without: tokens / max_seq_length, rounded up."""


class Segment(Value):
    text: str
    is_target: bool
    """Whether these tokens count towards the loss."""


class Sample(Value):
    line: int
    num_tokens: Count
    segments: tuple[Segment, ...]
    is_cut: bool
    """Whether only the first tokens are shown."""


class DatasetReport(Value):
    version: Sha256
    tenant: str
    rules_version: int
    base_sha: Sha256
    template_sha256: Sha256
    method: Method
    policy: DatasetPolicy
    max_seq_length: Count
    code: str
    """`ready`, or why no version was made."""
    message: str
    warnings: tuple[str, ...]
    files: tuple[FileReport, ...]
    sources: tuple[SourceReport, ...]
    safety_share: float
    safety_rows: Count
    lengths: LengthHistogram | None
    packing: PackingReport | None
    samples: tuple[Sample, ...]

    def first_problems(self) -> tuple[RowProblem, ...]:
        """Return the problems that the event names, those of the training file first."""
        files = sorted(self.files, key=lambda file: file.role != "training")
        return tuple([problem for file in files for problem in file.problems][:MAX_IN_EVENT])
