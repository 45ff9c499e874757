"""`datasets/<version>/excerpts.json`: texts and windows that show what the report of a dataset counts.

Bounded whatever the size of the dataset: MAX_CLUSTERS, MAX_OVERLAPS and MAX_WINDOWS entries, each text of
MAX_CHARACTERS.
"""

from schemas.base import Count, Sha256, Value
from schemas.dataset import FileRole
from schemas.report import SourceKind

MAX_CLUSTERS = 20
MAX_MEMBERS = 3
MAX_OVERLAPS = 20
MAX_WINDOWS = 24
MAX_PIECES_OF_A_WINDOW = 256
MAX_CHARACTERS = 1_200


class Run(Value):
    """A run of a text; either words, or a number of words that are not shown."""

    text: str = ""
    is_shared: bool = False
    """Whether the other text has these words too, as the filter compares them."""
    hidden_words: Count = 0
    """Number of words of an operator's item that the row does not hold: they are the operator's."""


class Excerpt(Value):
    """A text around what matters in it."""

    runs: tuple[Run, ...]
    is_cut_before: bool = False
    is_cut_after: bool = False

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.runs)


class Member(Value):
    """A row of a cluster: each turn as `role: content`."""

    file: FileRole
    line: Count
    similarity: float
    """Similarity of the prompts, to the kept row; 1.0 for the kept row and for rows whose folded texts are equal."""
    excerpt: Excerpt


class ClusterExcerpt(Value):
    """Rows that repeat one row. All excerpts begin at the same character, before the first difference."""

    duplicates: Count
    """Number of rows of the report's list that repeat the kept one."""
    members: tuple[Member, ...]
    """The kept row first, then the least similar ones."""


class OverlapExcerpt(Value):
    """A contaminated row beside the item of a source that it holds most of."""

    file: FileRole
    line: Count
    source: str
    kind: SourceKind
    item: Count
    """1-based line in the source's file."""
    share: float
    """Share of the item's 13-grams that the row holds, boilerplate left out."""
    shared_words: Count
    """Number of the row's words that stand in runs which the item has too."""
    longest_run: Count
    """Number of words of the longest such run."""
    row: Excerpt
    item_text: Excerpt
    """Of a benchmark or suite only what the row holds of it."""


class PackingFigures(Value):
    """What windows of one length make of the rows, by the packing that training data are written with."""

    max_seq_length: Count
    rows: Count
    long_rows: Count
    """Number of rows that are longer than a window: cut, continued in further windows, or left out, by the policy."""
    pieces: Count
    """Number of rows, and of pieces of texts that are longer than a window, in the windows."""
    tokens: Count
    windows: Count
    padding_ratio: float
    """Share of the windows' room that no token fills."""
    unpacked_padding_ratio: float
    """The same with each piece in a window of its own."""


class WindowExcerpt(Value):
    index: Count
    """0-based, among the windows of the first part."""
    pieces: tuple[Count, ...]
    """Tokens of each row or piece in the window, in their order; the first MAX_PIECES_OF_A_WINDOW."""
    tokens: Count
    """Tokens of all of them."""


class PackingExcerpt(Value):
    chosen: PackingFigures
    """Of the dataset as it is trained on."""
    others: tuple[PackingFigures, ...]
    """Of other lengths, where the lengths of the rows are known for them."""
    rows_of_others: Count
    """Number of rows, the first of the dataset, that `others` are computed of."""
    windows: tuple[WindowExcerpt, ...]
    """Windows at equal distances over the first part, so that they show all of it."""
    windows_of_part: Count
    """Number of windows of the first part."""


class DatasetExcerpts(Value):
    version: Sha256
    tenant: str
    clusters: tuple[ClusterExcerpt, ...] = ()
    overlaps: tuple[OverlapExcerpt, ...] = ()
    packing: PackingExcerpt | None = None
