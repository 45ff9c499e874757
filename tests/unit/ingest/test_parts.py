"""Parts are what the contract says, byte for byte the same each time, and say the same as the rows."""

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from schemas.artifacts import FileEntry
from services.ingest.pipeline import parts
from services.ingest.pipeline.figures import length_histogram, packing_report
from services.ingest.pipeline.parts import PartTotals, PartWriter, TokenSpool
from services.ingest.pipeline.run import within
from services.ingest.pipeline.tokens import Encoded

ROWS = [(3, 5), (4, 2), (9, 8), (-1, 3)]
"""Line and number of tokens."""


def a_row(line: int, length: int) -> Encoded:
    mask = np.ones(length, np.uint8)
    mask[0] = 0
    return Encoded(np.full(length, 100 + line, np.int32), mask)


def written(directory: Path, rows: list[tuple[int, int]] = ROWS) -> tuple[tuple[FileEntry, ...], PartTotals]:
    output = directory / "out"
    output.mkdir(parents=True)
    writer = PartWriter(output, lambda: TokenSpool(directory, "part"), max_seq_length=8)
    for line, length in rows:
        writer.add(line, a_row(line, length))
    return writer.close(), writer.totals


def test_a_part_holds_every_array_of_the_contract(tmp_path: Path) -> None:
    (entry,), _ = written(tmp_path)
    arrays = load_file(tmp_path / "out" / entry.path)
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "tokens": ("int32", (18,)),
        "loss_mask": ("uint8", (18,)),
        "example_offsets": ("int64", (5,)),
        "example_lines": ("int64", (4,)),
        "window_offsets": ("int64", (4,)),
        "window_examples": ("int64", (4,)),
    }
    assert arrays["example_lines"].tolist() == [3, 4, 9, -1]
    assert arrays["example_offsets"].tolist() == [0, 5, 7, 15, 18]
    assert arrays["tokens"].tolist() == [103] * 5 + [104] * 2 + [109] * 8 + [99] * 3
    assert arrays["loss_mask"].tolist() == [0, 1, 1, 1, 1, 0, 1, *[0, 1, 1, 1, 1, 1, 1, 1], 0, 1, 1]
    assert arrays["window_offsets"].tolist() == [0, 1, 3, 4]
    assert arrays["window_examples"].tolist() == [2, 0, 3, 1]


def test_the_totals_are_those_of_the_rows(tmp_path: Path) -> None:
    _, totals = written(tmp_path)
    assert totals == PartTotals(rows=4, tokens=18, loss_tokens=14, windows=3, pieces=4)
    assert packing_report(totals, 8).fill_ratio == 0.75
    assert packing_report(totals, 8).fewest_windows == 3


def test_a_row_longer_than_a_window_is_several_examples_that_predict_each_token_once(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    writer = PartWriter(output, lambda: TokenSpool(tmp_path, "part"), max_seq_length=8)
    tokens = np.arange(17, dtype=np.int32)
    writer.add(5, Encoded(tokens, np.ones(17, np.uint8)))
    (entry,) = writer.close()
    arrays = load_file(output / entry.path)
    offsets = arrays["example_offsets"]
    examples = [arrays["tokens"][start:end].tolist() for start, end in pairwise(offsets.tolist())]
    assert examples == [[0, 1, 2, 3, 4, 5, 6, 7], [7, 8, 9, 10, 11, 12, 13, 14], [14, 15, 16]]
    predicted = [token for example in examples for token in example[1:]]
    assert predicted == list(range(1, 17))
    assert arrays["example_lines"].tolist() == [5, 5, 5]
    assert writer.totals == PartTotals(rows=1, tokens=19, loss_tokens=16, windows=3, pieces=3)
    assert list(writer.lengths) == [17]


@pytest.mark.parametrize(("length", "pieces"), [(1, [1]), (2, [2]), (8, [8]), (9, [8, 2]), (15, [8, 8])])
def test_a_piece_has_a_token_to_predict(length: int, pieces: list[int]) -> None:
    row = a_row(1, length)
    assert [len(piece.tokens) for piece in parts.pieces_of(row, max_tokens=8)] == pieces


def test_a_text_that_has_no_room_is_passed_over() -> None:
    lengths = np.array([5, 90, 10, 4])
    assert within([1, 0, 2, 3], lengths, 20) == [0, 2, 3]
    assert within([1, 0, 2, 3], lengths, 15) == [0, 2]
    assert within([1], lengths, 89) == []


def test_a_part_is_named_by_its_sha256_and_nothing_else_is_left(tmp_path: Path) -> None:
    (entry,), _ = written(tmp_path)
    content = (tmp_path / "out" / entry.path).read_bytes()
    assert entry == FileEntry(
        path=f"parts/{hashlib.sha256(content).hexdigest()}",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [entry.sha256]


def test_equal_rows_make_equal_bytes_and_another_line_number_makes_others(tmp_path: Path) -> None:
    first, _ = written(tmp_path / "a")
    again, _ = written(tmp_path / "b")
    other, _ = written(tmp_path / "c", [*ROWS[:-1], (-2, 3)])
    assert first == again
    assert first != other


def test_a_full_part_is_closed_and_no_row_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_TOKENS", 7)
    entries, totals = written(tmp_path)
    arrays = [load_file(tmp_path / "out" / entry.path) for entry in entries]
    assert [part["example_lines"].tolist() for part in arrays] == [[3, 4], [9], [-1]]
    assert [part["example_offsets"].tolist() for part in arrays] == [[0, 5, 7], [0, 8], [0, 3]]
    assert totals.windows == 3


def test_a_spooled_row_reads_back_while_more_are_added(tmp_path: Path) -> None:
    spool = TokenSpool(tmp_path, "mix")
    spool.add(1, a_row(1, 4))
    spool.add(2, a_row(2, 3))
    back = spool.get(0)
    spool.add(3, a_row(3, 2))
    assert (back.tokens.tolist(), back.mask.tolist()) == ([101] * 4, [0, 1, 1, 1])
    assert spool.get(2).tokens.tolist() == [103] * 2
    spool.close()


@pytest.mark.parametrize(
    ("lengths", "edges", "rows"),
    [
        ([1], (0, 16), (1,)),
        ([16, 17], (0, 16, 32), (1, 1)),
        ([3, 64, 65, 4096], (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096), (1, 0, 1, 1, 0, 0, 0, 0, 1)),
    ],
)
def test_every_row_is_in_one_bucket(
    lengths: list[int], edges: tuple[int, ...], rows: tuple[int, ...]
) -> None:
    histogram = length_histogram(parts.array("i", lengths))
    assert histogram is not None
    assert (histogram.edges, histogram.rows) == (edges, rows)
    assert (histogram.minimum, histogram.maximum) == (min(lengths), max(lengths))


def test_a_preference_row_is_two_examples_of_one_window(tmp_path: Path) -> None:
    """Their order and sides are what training pairs them by; the answers alone are targets."""
    output = tmp_path / "out"
    output.mkdir()
    writer = PartWriter(output, lambda: TokenSpool(tmp_path, "part"), max_seq_length=9)
    for line, (chosen, rejected) in enumerate([(2, 3), (5, 4), (2, 2)], start=1):
        tokens = np.full(chosen + rejected, line, np.int32)
        mask = np.array([0] + [1] * (chosen - 1) + [0] + [1] * (rejected - 1), np.uint8)
        writer.add(line, Encoded(tokens, mask, border=chosen))
    (entry,) = writer.close()
    arrays = load_file(output / entry.path)
    assert arrays["example_offsets"].tolist() == [0, 2, 5, 10, 14, 16, 18]
    assert arrays["example_sides"].tolist() == [1, 2] * 3
    assert arrays["example_lines"].tolist() == [1, 1, 2, 2, 3, 3]
    assert arrays["window_offsets"].tolist() == [0, 2, 6]
    assert arrays["window_examples"].tolist() == [2, 3, 0, 1, 4, 5]
    assert writer.totals == PartTotals(rows=3, tokens=18, loss_tokens=12, windows=2, pieces=3)
