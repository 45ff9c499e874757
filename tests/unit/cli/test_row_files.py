"""Files of rows are uploaded as JSON lines, however people have them."""

import gzip
import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import parquet

from cli.row_files import json_lines_of
from ops.errors import RefusedByPlatform

ROWS = [
    {"question": "Wo?", "choices": {"text": ["hier", "dört"], "label": ["A", "B"]}, "answerKey": "A"},
    {"question": "Wann?", "choices": {"text": ["jetzt", "nie"], "label": ["1", "2"]}, "answerKey": "2"},
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def read(path):
    with json_lines_of(path) as lines:
        return lines.name, [json.loads(line) for line in lines.read_text().splitlines()]


def test_json_lines_are_uploaded_as_they_are(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(b"\xef\xbb\xbf\n" + LINES)
    with json_lines_of(path) as lines:
        assert lines == path


def test_json_lines_in_gzip_are_unpacked(tmp_path):
    path = tmp_path / "test.jsonl.gz"
    path.write_bytes(gzip.compress(LINES))
    assert read(path) == ("test.jsonl", ROWS)


def test_parquet_becomes_json_lines_with_the_same_values(tmp_path):
    path = tmp_path / "test-00000-of-00001.parquet"
    parquet.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=1)
    assert read(path) == ("test-00000-of-00001.jsonl", ROWS)


def test_fields_that_other_rows_have_are_not_in_a_row_of_parquet(tmp_path):
    """A struct has every field in every row: the arguments of a call would be those of all calls."""
    call = {"type": "function", "function": {"name": "look", "arguments": {"city": "Ulm"}}}
    other = {"type": "function", "function": {"name": "wait", "arguments": {"seconds": 3}}}
    rows = [
        {"messages": [{"role": "user", "content": "Wo?"}, {"role": "assistant", "tool_calls": [each]}]}
        for each in (call, other)
    ]
    path = tmp_path / "calls.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path)
    assert read(path)[1] == rows


def test_values_of_parquet_are_those_that_json_has(tmp_path):
    path = tmp_path / "rows.parquet"
    kinds = {
        "at": pa.array([datetime(2027, 3, 1, 12, tzinfo=UTC)]),
        "price": pa.array([Decimal("1.50")]),
        "names": pa.array([[("a", 1)]], type=pa.map_(pa.string(), pa.int64())),
        "kind": pa.array(["x"]).dictionary_encode(),
    }
    parquet.write_table(pa.table(kinds), path)
    assert read(path)[1] == [
        {"at": "2027-03-01 12:00:00+00:00", "price": "1.50", "names": {"a": 1}, "kind": "x"}
    ]


def test_what_a_file_is_decide_its_bytes(tmp_path):
    path = tmp_path / "train.jsonl"
    parquet.write_table(pa.Table.from_pylist(ROWS), path)
    assert read(path) == ("train.jsonl", ROWS)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty, expected JSON lines"),
        (b" \n", "is empty, expected JSON lines"),
        (b'[{"a": 1}]', r"begins with b'\[\{\"a\": 1\}\]', expected JSON lines \(one object a line\)"),
        (b"question,answer\n", "begins with b'question,ans', expected JSON lines"),
        (gzip.compress(b"", mtime=0), "is empty, expected JSON lines"),
        (gzip.compress(b"[1]", mtime=0), r"begins with b'\[1\]', expected JSON lines"),
        (gzip.compress(LINES)[:-9], "broken gzip"),
        (b"\x1f\x8b and no more", "broken gzip"),
        (b"PAR1 and no more", "not readable as Parquet"),
    ],
)
def test_anything_else_is_refused_with_what_it_is(tmp_path, content, reason):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(RefusedByPlatform, match=reason), json_lines_of(path):
        pass


def test_a_value_that_json_does_not_have_names_its_row(tmp_path):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"image": [None, b"\x89PNG"]}), path)
    with pytest.raises(RefusedByPlatform, match="row 2: Object of type bytes"), json_lines_of(path):
        pass


@pytest.mark.parametrize("write", ["gzip", "parquet"])
def test_a_small_file_that_unpacks_to_too_much_is_refused(tmp_path, write):
    at_most = len(LINES) - 10
    path = tmp_path / "rows"
    if write == "gzip":
        path.write_bytes(gzip.compress(LINES))
    else:
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    refusal = pytest.raises(RefusedByPlatform, match=f"over {at_most} bytes as JSON lines, expected at most")
    with refusal, json_lines_of(path, at_most_bytes=at_most):
        pass


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RefusedByPlatform, match="no such file"), json_lines_of(tmp_path / "rows.jsonl"):
        pass
