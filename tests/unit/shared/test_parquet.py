"""Rows of Parquet are read as JSON lines: the same values, bounded memory, and a sentence for what cannot be read."""

import json
import subprocess
import sys
from datetime import UTC, date, datetime
from datetime import time as clock_time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from shared.parquet import BadParquet, num_rows_of, open_rows
from shared.row_files import is_parquet
from tests.parquet import parquet_of

ROWS = [
    {"question": "Wo?", "choices": {"text": ["hier", "dört"], "label": ["A", "B"]}, "answerKey": "A"},
    {"question": "Wann?", "choices": {"text": ["jetzt", "nie"], "label": ["1", "2"]}, "answerKey": "2"},
]
MEASURED = """
import re, sys
from pathlib import Path
from shared.parquet import open_rows
with open_rows(Path(sys.argv[1])) as rows:
    lines = sum(1 for _ in rows)
print(lines, re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows"


def read(path: Path, content: bytes, **options) -> list:
    path.write_bytes(content)
    with open_rows(path, **options) as lines:
        return [json.loads(line) for line in lines]


def refusal(path: Path, content: bytes, **options) -> str:
    with pytest.raises(BadParquet) as caught:
        read(path, content, **options)
    return str(caught.value)


def nested(levels: int) -> pa.DataType:
    kind = pa.string()
    for _ in range(levels):
        kind = pa.struct([("a", kind)])
    return kind


def test_json_lines_are_read_as_they_are(path):
    path.write_bytes(b'\n{"text": "PAR1"}\r\n')
    with open_rows(path, at_most_bytes=1) as lines:
        assert lines.read() == b'\n{"text": "PAR1"}\r\n'
    assert not is_parquet(path)


@pytest.mark.parametrize("options", [{}, {"row_group_size": 1}, {"compression": "zstd"}, {"version": "1.0"}])
def test_each_row_is_a_line_with_the_same_values(path, options):
    assert read(path, parquet_of(ROWS, **options)) == ROWS
    assert is_parquet(path)
    assert num_rows_of(path) == 2


def test_rows_keep_their_order_and_number_over_batches_and_row_groups(path):
    rows = [{"text": f"row {number}\n\u2028"} for number in range(1_000)]
    path.write_bytes(parquet_of(rows, row_group_size=300))
    with open_rows(path) as lines:
        first = lines.readline(10)
        assert (first, first + lines.readline()) == (b'{"text": "', b'{"text": "row 0\\n\xe2\x80\xa8"}\n')
        assert [json.loads(line) for line in lines] == rows[1:]


def test_fields_that_other_rows_have_are_not_in_a_row(path):
    """A struct has every field in every row: the arguments of a call would be those of all calls."""
    call = {"type": "function", "function": {"name": "look", "arguments": {"city": "Ulm"}}}
    other = {"type": "function", "function": {"name": "wait", "arguments": {"seconds": 3}}}
    rows = [
        {"messages": [{"role": "user", "content": "Wo?"}, {"role": "assistant", "tool_calls": [each]}]}
        for each in (call, other)
    ]
    assert read(path, parquet_of(rows)) == rows


def test_values_are_those_that_json_has(path):
    columns = {
        "at": pa.array([datetime(2027, 3, 1, 12, tzinfo=UTC)]),
        "day": pa.array([date(2027, 3, 1)]),
        "time": pa.array([clock_time(12, 30)]),
        "price": pa.array([Decimal("1.50")]),
        "names": pa.array([[("a", 1)]], type=pa.map_(pa.string(), pa.int64())),
        "kind": pa.array(["x"]).dictionary_encode(),
        "long": pa.array(["y"], pa.large_string()),
        "view": pa.array([["z"]], pa.large_list(pa.string())),
        "none": pa.nulls(1),
        "missing": pa.array([None], pa.int64()),
        "holes": pa.array([[1, None]]),
        "flag": pa.array([True]),
        "half": pa.array([0.5], pa.float32()),
    }
    assert read(path, parquet_of(pa.table(columns))) == [
        {
            "at": "2027-03-01 12:00:00+00:00",
            "day": "2027-03-01",
            "time": "12:30:00",
            "price": "1.50",
            "names": {"a": 1},
            "kind": "x",
            "long": "y",
            "view": ["z"],
            "holes": [1, None],
            "flag": True,
            "half": 0.5,
        }
    ]


def test_a_number_that_json_has_not_is_left_to_the_reader_of_the_line(path):
    path.write_bytes(parquet_of(pa.table({"text": ["a"], "score": [float("nan")]})))
    with open_rows(path) as lines:
        assert lines.read() == b'{"text": "a", "score": NaN}\n'


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"image": [b"\x89PNG"]}), "has column 'image' of type binary, expected text, numbers"),
        (pa.table({"m": [[{"image": b"x"}]]}), r"has column 'm\[\].image' of type binary"),
        (pa.table({"took": pa.array([1], pa.duration("s"))}), r"has column 'took' of type duration\[s\]"),
        (pa.table({"id": pa.array([b"x" * 16], pa.uuid())}), "has column 'id' of type fixed_size_binary"),
        (
            pa.table({"m": pa.array([[(1, "a")]], pa.map_(pa.int64(), pa.string()))}),
            "has column 'm' of type map",
        ),
        (pa.table([["a"], ["b"]], names=["x", "x"]), "has 2 columns 'x', expected one of each name"),
        (
            pa.table({"x": pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["y", "y"])}),
            r"has 2 columns 'x\.y', expected one of each name",
        ),
        (pa.table({"x": pa.nulls(1, nested(32))}), "of over 32 levels, expected at most that"),
        (pa.table({"x": pa.nulls(1, nested(200))}), "footer that cannot be read: .*too deeply nested"),
        (
            pa.table({"at": pa.array([1] * 149 + [2**62, 2**62], pa.timestamp("us"))}),
            "has in row 150 what JSON has not: date value out of range",
        ),
        (
            pa.table({"m": pa.array([[("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))}),
            "has in row 2 what JSON has not: .*duplicate key was 'a'",
        ),
    ],
)
def test_what_no_json_object_has_is_refused_by_column_or_row(path, table, message):
    path.write_bytes(parquet_of(table))
    with pytest.raises(BadParquet, match=message), open_rows(path) as lines:
        lines.read()


def test_text_that_is_not_utf8_names_its_row(path):
    offsets, data = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")
    column = pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])
    assert "row 2 what JSON has not: 'utf-8' codec can't decode byte 0xff" in refusal(
        path, parquet_of(pa.table({"text": column}))
    )


def test_a_file_that_is_cut_off_says_so(path):
    whole = parquet_of(ROWS)
    for length in (4, 11, 12, len(whole) // 2, len(whole) - 1):
        found = refusal(path, whole[:length])
        assert found.startswith(f"is Parquet that is cut off: its {length} bytes end with b'")
        assert found.endswith(", expected a footer")


@pytest.mark.parametrize("change", [lambda raw: b"PARE" + raw[4:], lambda raw: raw[:-4] + b"PARE"])
def test_an_encrypted_file_says_so(path, change):
    assert (
        refusal(path, change(parquet_of(ROWS))) == "is encrypted Parquet, expected Parquet without encryption"
    )


def test_a_footer_that_is_none_says_so(path):
    whole = parquet_of(ROWS)
    length = (len(whole) - 11).to_bytes(4, "little")
    assert refusal(path, whole[:-8] + length + b"PAR1") == (
        f"is broken Parquet: found a footer of {len(whole) - 11} bytes in a file of {len(whole)}"
    )
    footer = int.from_bytes(whole[-8:-4], "little")
    broken = whole[: -8 - footer] + b"\x00" * footer + whole[-8:]
    assert refusal(path, broken).startswith("is Parquet that has a footer that cannot be read: ")


def test_a_broken_page_names_the_row_that_it_stands_behind(path):
    rows = [{"text": f"{number:06} {'x' * 200}"} for number in range(4_000)]
    whole = bytearray(
        parquet_of(
            rows, row_group_size=1_000, compression="zstd", use_dictionary=False, data_page_size=10_000
        )
    )
    middle = len(whole) // 2
    whole[middle : middle + 300] = b"\x07" * 300
    message, _, row = refusal(path, bytes(whole)).partition(":")[0].rpartition(" ")
    assert message == "is Parquet that cannot be read behind row"
    assert 1_900 < int(row) < 2_100


def test_more_text_than_asked_for_is_refused(path):
    content = parquet_of([{"text": "x" * 1_000}] * 10)
    assert len(read(path, content, at_most_bytes=11_000)) == 10
    assert refusal(path, content, at_most_bytes=5_000) == (
        "has more than 5000 bytes as JSON lines, expected at most that"
    )


def test_memory_does_not_grow_with_a_row_group(tmp_path):
    """One row group has all of it, uncompressed and compressed; a process of its own shows its peak."""
    text = ["".join(f"{row * 31 + index:09}" for index in range(200)) for row in range(1_000)]
    small = tmp_path / "small"
    large = tmp_path / "large"
    small.write_bytes(parquet_of(pa.table({"text": text}), use_dictionary=False))
    large.write_bytes(parquet_of(pa.table({"text": text * 60}), use_dictionary=False, compression="none"))
    assert large.stat().st_size > 100_000_000
    peaks = []
    for path in (small, large):
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True
        )
        lines, peak = map(int, done.stdout.split())
        assert lines == num_rows_of(path)
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 30_000
