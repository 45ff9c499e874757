"""What windows of the chosen length make of the rows, and what windows of other lengths would."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from schemas.excerpts import PackingExcerpt, PackingFigures
from services.ingest.pipeline.order import WorkOrder
from services.ingest.pipeline.packing import PART_TOKENS, pack
from services.ingest.pipeline.parts import PartWriter, piece_slices

OTHER_ROWS = 50_000
"""Number of rows, the first ones, that other lengths are computed of."""
FACTORS = (0.125, 0.25, 0.5, 2, 4, 8)
LEAST_TOKENS = 64


def packing_excerpt(order: WorkOrder, writer: PartWriter, *, left_out: int, is_text: bool) -> PackingExcerpt:
    """left_out: number of rows that are bad because they are longer than a window."""
    chosen = _chosen(writer, order.max_seq_length, left_out=left_out)
    is_continued = is_text and not order.spec.policy.truncation
    # A row that was cut or left out for its length: nobody knows what it would be in a longer window.
    is_known = is_continued or not (writer.totals.cut_rows or left_out)
    lengths = first_rows(writer.lengths)
    return PackingExcerpt(
        chosen=chosen,
        others=tuple(
            figures_of(lengths, length, truncates=order.spec.policy.truncation, is_continued=is_continued)
            for length in other_lengths(order.max_seq_length, order.context_tokens)
            if length < order.max_seq_length or is_known
        ),
        rows_of_others=len(lengths),
        windows=writer.windows,
        windows_of_part=writer.windows_of_part,
    )


def other_lengths(max_seq_length: int, context_tokens: int) -> list[int]:
    lengths = [int(max_seq_length * factor) for factor in FACTORS]
    return [length for length in lengths if LEAST_TOKENS <= length <= context_tokens]


def first_rows(lengths: "array[int]") -> "array[int]":
    """Return the lengths of the first rows, as many as one part may have tokens of."""
    first = lengths[:OTHER_ROWS]
    return first[: max(1, bisect_right([*accumulate(first)], PART_TOKENS))]


def figures_of(
    lengths: Sequence[int], max_seq_length: int, *, truncates: bool, is_continued: bool
) -> PackingFigures:
    """Pack rows of these lengths in tokens as training data are, each row as the policy would have it."""
    pieces = [*_pieces(lengths, max_seq_length, truncates=truncates, is_continued=is_continued)]
    return _figures(
        max_seq_length,
        rows=len(lengths),
        long_rows=sum(length > max_seq_length for length in lengths),
        pieces=len(pieces),
        tokens=sum(pieces),
        windows=pack(pieces, max_seq_length=max_seq_length).num_windows,
    )


def _pieces(
    lengths: Sequence[int], max_seq_length: int, *, truncates: bool, is_continued: bool
) -> Iterator[int]:
    for length in lengths:
        if length <= max_seq_length:
            yield length
        elif is_continued:
            for piece in piece_slices(length, max_tokens=max_seq_length):
                yield piece.stop - piece.start
        elif truncates:
            yield max_seq_length


def _chosen(writer: PartWriter, max_seq_length: int, *, left_out: int) -> PackingFigures:
    totals = writer.totals
    continued = sum(length > max_seq_length for length in writer.lengths)
    return _figures(
        max_seq_length,
        rows=totals.rows,
        long_rows=continued + totals.cut_rows + left_out,
        pieces=totals.pieces,
        tokens=totals.tokens,
        windows=totals.windows,
    )


def _figures(
    max_seq_length: int, *, rows: int, long_rows: int, pieces: int, tokens: int, windows: int
) -> PackingFigures:
    return PackingFigures(
        max_seq_length=max_seq_length,
        rows=rows,
        long_rows=long_rows,
        pieces=pieces,
        tokens=tokens,
        windows=windows,
        padding_ratio=_padding(tokens, windows * max_seq_length),
        unpacked_padding_ratio=_padding(tokens, pieces * max_seq_length),
    )


def _padding(tokens: int, room: int) -> float:
    return round(1 - tokens / room, 6) if room else 0.0
