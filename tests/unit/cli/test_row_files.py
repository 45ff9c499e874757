"""Files of rows are uploaded as they are, and unpacked where they are gzip."""

import gzip
import json

import pytest

from cli.row_files import uploadable
from ops.errors import RefusedByPlatform
from tests.parquet import parquet_of

ROWS = [
    {"question": "Wo?", "choices": {"text": ["hier", "dört"], "label": ["A", "B"]}, "answerKey": "A"},
    {"question": "Wann?", "choices": {"text": ["jetzt", "nie"], "label": ["1", "2"]}, "answerKey": "2"},
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def read(path):
    with uploadable(path) as lines:
        return lines.name, [json.loads(line) for line in lines.read_text().splitlines()]


def test_json_lines_are_uploaded_as_they_are(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(b"\xef\xbb\xbf\n" + LINES)
    with uploadable(path) as lines:
        assert lines == path


def test_json_lines_in_gzip_are_unpacked(tmp_path):
    path = tmp_path / "test.jsonl.gz"
    path.write_bytes(gzip.compress(LINES))
    assert read(path) == ("test.jsonl", ROWS)


@pytest.mark.parametrize("name", ["test-00000-of-00001.parquet", "train.jsonl"])
def test_parquet_is_uploaded_as_it_is_by_its_bytes_and_not_its_name(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(parquet_of(ROWS))
    with uploadable(path, at_most_bytes=1) as uploaded:
        assert uploaded == path


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
    ],
)
def test_anything_else_is_refused_with_what_it_is(tmp_path, content, reason):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(RefusedByPlatform, match=reason), uploadable(path):
        pass


def test_a_small_file_that_unpacks_to_too_much_is_refused(tmp_path):
    at_most = len(LINES) - 10
    path = tmp_path / "rows"
    path.write_bytes(gzip.compress(LINES))
    refusal = pytest.raises(RefusedByPlatform, match=f"over {at_most} bytes as JSON lines, expected at most")
    with refusal, uploadable(path, at_most_bytes=at_most):
        pass


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RefusedByPlatform, match="no such file"), uploadable(tmp_path / "rows.jsonl"):
        pass
