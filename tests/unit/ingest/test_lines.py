"""Caps on what is read: a hostile file costs little and is reported, never believed."""

import gzip
import io
import itertools
import json
import random
import resource
import zlib
from collections import Counter
from typing import BinaryIO

import pytest

from services.ingest.pipeline.lines import OTHER_FORMATS, Line, LineReader, parse_object
from services.ingest.pipeline.rules import BadRow, FileRefused

ROW = b'{"text": "x"}'


def reader(content: bytes | BinaryIO, *, max_row_bytes: int = 100, max_rows: int = 1000) -> LineReader:
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    return LineReader(stream, name="training", max_row_bytes=max_row_bytes, max_rows=max_rows)


def test_lines_keep_their_numbers_over_blank_ones() -> None:
    lines = reader(b"\n" + ROW + b"\n  \r\n" + ROW + b"\r\n\n")
    assert [line.number for line in lines] == [2, 4]
    assert lines.blank_lines == 3


def test_a_last_line_without_an_end_is_a_row() -> None:
    assert [line.content for line in reader(ROW + b"\n" + ROW)] == [ROW + b"\n", ROW]


def test_a_byte_order_mark_is_skipped_and_noted() -> None:
    lines = reader(b"\xef\xbb\xbf" + ROW)
    assert [parse_object(line, max_row_bytes=100) for line in lines] == [{"text": "x"}]
    assert lines.has_bom


@pytest.mark.parametrize("magic", OTHER_FORMATS)
def test_a_file_of_another_kind_is_refused_by_name(magic: bytes) -> None:
    with pytest.raises(
        FileRefused, match=f"is {OTHER_FORMATS[magic]}, expected plain UTF-8 JSONL, or Parquet"
    ):
        list(reader(magic + b"rest of the file\n"))


def test_gzip_is_refused_whatever_it_would_unpack_to() -> None:
    with pytest.raises(FileRefused, match="gzip"):
        list(reader(gzip.compress(b" " * 10_000_000)))


@pytest.mark.parametrize(("size", "is_row"), [(100, True), (101, False)])
def test_a_row_may_have_exactly_the_most_bytes(size: int, is_row: bool) -> None:
    content = b'{"text": "' + b"x" * (size - 12) + b'"}'
    assert len(content) == size
    first, second = reader(content + b"\n" + ROW + b"\n")
    assert second.content == ROW + b"\n"
    if is_row:
        assert parse_object(first, max_row_bytes=100)
    else:
        with pytest.raises(BadRow, match="101 bytes, at most 100") as caught:
            parse_object(first, max_row_bytes=100)
        assert caught.value.rule == "json.too_large"


def test_more_rows_than_allowed_refuse_the_file() -> None:
    with pytest.raises(FileRefused, match=r"more than 2 rows \(policy.max_rows\)"):
        list(reader(b"\n".join([ROW] * 3), max_rows=2))


class Endless(io.RawIOBase):
    """A line of any length that never lies in memory as a whole."""

    def __init__(self, size: int) -> None:
        self.left = size

    def readline(self, limit: int | None = -1, /) -> bytes:
        assert limit is not None
        assert 0 < limit <= 1 << 20, "a read without a bound"
        taken = min(limit, self.left)
        self.left -= taken
        return b"x" * taken


def test_a_line_of_a_gigabyte_is_passed_over_in_pieces() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (line,) = reader(Endless(1 << 30), max_row_bytes=1000)
    assert (line.number, line.content, line.size_bytes) == (1, b"", 1 << 30)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def bombs() -> list[bytes]:
    """Lines that try to cost more than they weigh."""
    rng = random.Random(1)
    opened = [
        prefix * depth + suffix
        for prefix, depth, suffix in itertools.product(
            (b"[", b'{"a":', b'[{"a":', b'{"a":[', b"[[],"), (33, 100, 1000, 5000), (b"", b"1", b"]", b'"\\')
        )
    ]
    closed = [b"[" * depth + b"]" * depth for depth in (33, 500, 990, 1000, 1100, 5000)]
    numbers = [b'{"a": ' + b"9" * size + b"}" for size in (4301, 10_000, 30_000)] + [b'{"a": 1e999999999}']
    escapes = [
        b'{"a": "' + piece * 3000 + b'"}' for piece in (rb"\u0000", rb"\ud800", rb"\"", rb"\x", b"\x00")
    ]
    wide = [b"[" + b"[]," * 9000 + b"[]]", b'{"a": [' + b"{}," * 9000 + b"{}]}"]
    keys = [
        b"{" + b'"k": 1, ' * 4000 + b'"k": 1}',
        b"{" + b",".join(b'"%d": 1' % i for i in range(4000)) + b"}",
    ]
    noise = [rng.randbytes(rng.randrange(1, 400)).replace(b"\n", b" ") for _ in range(60)]
    torn = [json.dumps({"messages": [{"role": "user"}] * 9}).encode()[:cut] for cut in range(1, 60)]
    packed = [zlib.compress(b"x" * 100_000).replace(b"\n", b" "), b"PAR1" + b"\x00" * 100]
    return [*opened, *closed, *numbers, *escapes, *wide, *keys, *noise, *torn, *packed]


def test_every_bomb_is_a_bad_row_or_a_small_object() -> None:
    contents = bombs()
    assert len(contents) >= 200
    rules = Counter(rule_or_row(content) for content in contents)
    assert rules["row"] < 10
    assert set(rules) <= {
        "row",
        "json.invalid",
        "json.utf8",
        "json.depth",
        "json.not_object",
        "json.duplicate_key",
    }


def rule_or_row(content: bytes) -> str:
    try:
        row = parse_object(Line(1, content, len(content)), max_row_bytes=100_000)
    except BadRow as problem:
        return problem.rule
    return "row" if len(json.dumps(row)) < 4 * len(content) else "larger than its line"
