"""Texts of some rows and items behind the report: duplicates side by side, contaminated rows beside their items.

Which ones follows from the counts, once they are whole. They are read again then, so that nothing is kept meanwhile.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import xxhash

from schemas.dataset import FileRole
from schemas.excerpts import (
    MAX_CHARACTERS,
    MAX_CLUSTERS,
    MAX_MEMBERS,
    MAX_OVERLAPS,
    ClusterExcerpt,
    DatasetExcerpts,
    Excerpt,
    Member,
    OverlapExcerpt,
    PackingExcerpt,
    Run,
)
from schemas.report import Duplicate, Overlap, SourceKind
from services.ingest.pipeline.contamination import Source
from services.ingest.pipeline.counts import FileCounts
from services.ingest.pipeline.duplicates import Kept
from services.ingest.pipeline.files import HOLDOUT, open_file, reader_of
from services.ingest.pipeline.formats import Turn, parse_example
from services.ingest.pipeline.items import MAX_ITEM_BYTES, MAX_ITEMS, Item, item_of_row
from services.ingest.pipeline.lines import LineReader, parse_object
from services.ingest.pipeline.order import WorkOrder
from services.ingest.pipeline.shared_runs import WrittenText, compared, written_item, written_row
from services.ingest.pipeline.verdict import DatasetVerdict
from shared.parquet import open_rows
from shared.row_files import MAX_GATE_BYTES

LARGEST_CLUSTERS = 10
LEAST_SIMILAR_CLUSTERS = 5
CHARACTERS_READ = 100_000
"""Length in characters of what is kept of one text while excerpts are cut."""
CHARACTERS_BEFORE = 200
"""Length in characters of what is shown before the first thing that matters."""


@dataclass(frozen=True)
class ChosenCluster:
    role: FileRole
    """File of the duplicates."""
    kept: Kept
    duplicates: Sequence[Duplicate]

    @property
    def least_similar(self) -> float:
        return min(duplicate.similarity for duplicate in self.duplicates)

    @property
    def shown(self) -> list[Duplicate]:
        return sorted(self.duplicates, key=lambda each: (each.similarity, each.line))[: MAX_MEMBERS - 1]


Place = tuple[str, int]
"""A file of the dataset, and a line of it."""


def excerpts_of(
    order: WorkOrder, verdict: DatasetVerdict, sources: Iterable[Source], packing: PackingExcerpt | None
) -> DatasetExcerpts:
    """Read what is shown of the rows and items."""
    clusters, overlaps = choose_clusters(verdict.files), choose_overlaps(verdict.files)
    places = {
        *((each.kept.file, each.kept.line) for each in clusters),
        *((each.role, duplicate.line) for each in clusters for duplicate in each.shown),
        *((role, overlap.line) for role, overlap in overlaps),
        *((HOLDOUT, overlap.item) for _, overlap in overlaps if overlap.source == HOLDOUT),
    }
    rows = {place: turns for counts in verdict.files for place, turns in _rows(order, counts, places)}
    items = dict(_items(order, {(overlap.source, overlap.item) for _, overlap in overlaps}))
    by_name = {source.name: source for source in sources}
    kinds: dict[str, SourceKind] = {source.name: source.kind for source in order.sources}
    return DatasetExcerpts(
        version=order.version,
        tenant=order.tenant,
        clusters=tuple(cluster_excerpt(each, rows) for each in clusters),
        overlaps=tuple(
            overlap_excerpt(
                role,
                overlap,
                written_row(rows[role, overlap.line]),
                [written_row(rows[HOLDOUT, overlap.item])]
                if overlap.source == HOLDOUT
                else written_item(items[overlap.source, overlap.item]),
                source=by_name[overlap.source],
                kind=kinds.get(overlap.source, "holdout"),
            )
            for role, overlap in overlaps
        ),
        packing=packing,
    )


def choose_clusters(files: Iterable[FileCounts]) -> list[ChosenCluster]:
    """Choose the largest clusters, then those with the least similar rows, then some spread over the files."""
    rest = [
        ChosenCluster(counts.role, kept, duplicates)
        for counts in files
        for kept, duplicates in counts.clusters.items()
    ]
    rest.sort(key=lambda each: (-len(each.duplicates), *_place(each)))
    chosen, rest = rest[:LARGEST_CLUSTERS], rest[LARGEST_CLUSTERS:]
    near = sorted(
        (each for each in rest if each.least_similar < 1),
        key=lambda each: (each.least_similar, *_place(each)),
    )[:LEAST_SIMILAR_CLUSTERS]
    places = {_place(each) for each in near}
    others = sorted((each for each in rest if _place(each) not in places), key=_spread)
    return [*chosen, *near, *others][:MAX_CLUSTERS]


def _place(cluster: ChosenCluster) -> tuple[str, str, int]:
    return cluster.role, cluster.kept.file, cluster.kept.line


def _spread(cluster: ChosenCluster) -> int:
    return xxhash.xxh3_64_intdigest(repr(_place(cluster)).encode())


def choose_overlaps(files: Iterable[FileCounts]) -> list[tuple[FileRole, Overlap]]:
    """Choose the contaminated rows that hold the largest shares of their items, each row once."""
    every = [
        (counts.role, overlap)
        for counts in files
        for overlap in counts.overlaps
        if overlap.is_contaminated and counts.role != HOLDOUT
    ]
    every.sort(key=lambda each: (-each[1].share, each[0], each[1].line, each[1].source))
    by_row: dict[Place, tuple[FileRole, Overlap]] = {}
    for role, overlap in every:
        by_row.setdefault((role, overlap.line), (role, overlap))
    return list(by_row.values())[:MAX_OVERLAPS]


def cluster_excerpt(cluster: ChosenCluster, rows: dict[Place, tuple[Turn, ...]]) -> ClusterExcerpt:
    members: list[tuple[FileRole, int, float]] = [(cluster.kept.file, cluster.kept.line, 1.0)]  # type: ignore[list-item]
    members += [(cluster.role, duplicate.line, duplicate.similarity) for duplicate in cluster.shown]
    texts = [written_row(rows[role, line]).text for role, line, _ in members]
    begin = min(common_prefix(texts[0], text) for text in texts[1:])
    return ClusterExcerpt(
        duplicates=len(cluster.duplicates),
        members=tuple(
            Member(
                file=role,
                line=line,
                similarity=similarity,
                excerpt=cut_around(text, (), begin, longest=max(map(len, texts))),
            )
            for (role, line, similarity), text in zip(members, texts, strict=True)
        ),
    )


def common_prefix(left: str, right: str) -> int:
    """Return the number of characters that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def overlap_excerpt(
    role: FileRole,
    overlap: Overlap,
    row: WrittenText,
    items: Sequence[WrittenText],
    *,
    source: Source,
    kind: SourceKind,
) -> OverlapExcerpt:
    """items: the texts that the item is found by; the one that the row holds most of is shown."""
    item, in_row, in_item = max(
        ((item, *compared(row, item, source.grams)) for item in items), key=lambda each: each[2].num_words
    )
    is_own = kind == "holdout"
    return OverlapExcerpt(
        file=role,
        line=overlap.line,
        source=overlap.source,
        kind=kind,
        item=overlap.item,
        share=overlap.share,
        shared_words=in_row.num_words,
        longest_run=in_row.longest_run,
        row=cut_around(row.text, in_row.spans, in_row.begin),
        item_text=cut_around(item.text, in_item.spans, in_item.begin)
        if is_own
        else without_the_rest(item.text, in_item.spans),
    )


def cut_around(text: str, spans: Sequence[tuple[int, int]], begin: int, *, longest: int = 0) -> Excerpt:
    """Cut a text to MAX_CHARACTERS around a character, with its spans as shared runs.

    longest: length in characters of the longest text that is shown beside it and cut at the same place.
    """
    room = max(longest, len(text)) - MAX_CHARACTERS
    first = max(0, min(begin - CHARACTERS_BEFORE, room))
    last = first + MAX_CHARACTERS
    return Excerpt(
        runs=tuple(
            Run(text=text[max(start, first) : min(end, last)], is_shared=is_shared)
            for start, end, is_shared in _runs(spans, len(text))
            if max(start, first) < min(end, last)
        ),
        is_cut_before=first > 0,
        is_cut_after=last < len(text),
    )


def without_the_rest(text: str, spans: Sequence[tuple[int, int]]) -> Excerpt:
    """Return the spans of a text, at most MAX_CHARACTERS of them, and how many words stand between them."""
    left = MAX_CHARACTERS
    runs: list[Run] = []
    for start, end, is_shared in _runs(spans, len(text)):
        if left <= 0:
            return Excerpt(runs=tuple(runs), is_cut_after=True)
        if is_shared:
            runs.append(Run(text=text[start : min(end, start + left)], is_shared=True))
            left -= end - start
        elif words := len(text[start:end].split()):
            runs.append(Run(hidden_words=words))
    return Excerpt(runs=tuple(runs), is_cut_after=left < 0)


def _runs(spans: Sequence[tuple[int, int]], length: int) -> Iterator[tuple[int, int, bool]]:
    """Yield start, end and whether it is a span, for all of a text of `length` characters."""
    position = 0
    for start, end in spans:
        if position < start:
            yield position, start, False
        yield start, end, True
        position = end
    if position < length:
        yield position, length, False


def _rows(
    order: WorkOrder, counts: FileCounts, places: Collection[Place]
) -> Iterator[tuple[Place, tuple[Turn, ...]]]:
    lines = {line for role, line in places if role == counts.role}
    path = order.path_of(counts.role)
    if not lines or path is None:
        return
    policy = order.spec.policy
    with open_file(path, counts.role) as stream:
        for line in reader_of(stream, counts.role, policy):
            if line.number in lines:
                row = parse_object(line, max_row_bytes=policy.max_row_bytes)
                example = parse_example(row, expected=counts.format, line=line.number)
                yield (counts.role, line.number), tuple(map(_shortened, example.turns))
                lines.remove(line.number)
                if not lines:
                    return


def _shortened(turn: Turn) -> Turn:
    return Turn(turn.role, turn.content[:CHARACTERS_READ], turn.field, turn.is_trained)


def _items(order: WorkOrder, places: Collection[tuple[str, int]]) -> Iterator[tuple[Place, Item]]:
    for source in order.sources:
        lines = {line for name, line in places if name == source.name}
        if lines:
            for item in _items_of(source.name, source.path, lines):
                yield (source.name, item.line), item


def _items_of(name: str, path: Path, lines: set[int]) -> Iterator[Item]:
    last = max(lines)
    with open_rows(path, at_most_bytes=MAX_GATE_BYTES) as stream:
        for line in LineReader(stream, name=name, max_row_bytes=MAX_ITEM_BYTES, max_rows=MAX_ITEMS):
            if line.number in lines:
                item = item_of_row(line.number, parse_object(line, max_row_bytes=MAX_ITEM_BYTES))
                asked = tuple(text[:CHARACTERS_READ] for text in item.asked)
                yield Item(item.line, asked, item.answer[:CHARACTERS_READ])
            if line.number >= last:
                return
