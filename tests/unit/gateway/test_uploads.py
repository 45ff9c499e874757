import pytest

from schemas.specification import DatasetFormat
from services.gateway.errors import ApiError
from services.gateway.uploads import (
    DATASET_PURPOSES,
    SUITE_PURPOSES,
    detect_format,
    require_fields,
    require_purpose,
    safe_name,
)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (b'{"messages": []}', DatasetFormat.CHAT),
        (b'{"tools": [], "parallel_tool_calls": false, "messages": []}', DatasetFormat.CHAT),
        (b'{"functions": [], "messages": [], "text": "a"}', DatasetFormat.CHAT),
        (b'{"prompt": "a", "completion": "b"}', DatasetFormat.PROMPT_COMPLETION),
        (b'{"prompt": "a", "chosen": "b", "rejected": "c"}', DatasetFormat.PREFERENCE),
        (b'{"input": {}, "preferred_output": [], "non_preferred_output": []}', DatasetFormat.PREFERENCE),
        (b'{"text": "a"}', DatasetFormat.TEXT),
    ],
)
def test_the_format_is_that_of_the_first_row(tmp_path, row, expected):
    path = tmp_path / "file"
    path.write_bytes(b"\n" + row + b"\n{}\n")
    assert detect_format(path, purpose="fine-tune") == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no rows"),
        (b"\n\n", "no rows"),
        (b"{", "line 1 is not JSON"),
        (b"[1]", "line 1: found list"),
        (b'{"text": "a"}\nnonsense\n', "line 2 is not JSON"),
        (b'{"question": "a"}', "found keys question"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b'{"text": "' + b"x" * (5 * 1024 * 1024), "line 1 has over"),
    ],
)
def test_what_cannot_be_json_lines_is_refused_with_the_line(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ApiError, match=message) as caught:
        detect_format(path, purpose="fine-tune")
    assert caught.value.body["error"]["param"] == "file"


def test_other_purposes_need_rows_but_no_format(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b'{"question": "a"}\n')
    assert detect_format(path, purpose="benchmark") is None


@pytest.mark.parametrize(
    ("purpose", "known", "message"),
    [
        ("assistants", DATASET_PURPOSES, "purpose: found 'assistants', expected fine-tune"),
        ("benchmark", DATASET_PURPOSES, "purpose: found 'benchmark', expected fine-tune"),
        ("fine-tune", SUITE_PURPOSES, "purpose: found 'fine-tune', expected benchmark, safety-suite"),
    ],
)
def test_a_purpose_that_is_not_the_callers_is_named(purpose, known, message):
    with pytest.raises(ApiError, match=message):
        require_purpose(purpose, known)


@pytest.mark.parametrize(
    ("names", "param", "code"),
    [
        (["file", "purpose", "colour"], "colour", "unknown_parameter"),
        (["file", "purpose", "expires_after[anchor]"], "expires_after", "not_available_yet"),
        (["file"], "purpose", "missing_required_parameter"),
        (["purpose"], "file", "missing_required_parameter"),
        (["file", "purpose", "purpose"], "purpose", "invalid_value"),
    ],
)
def test_a_field_of_the_form_at_fault_is_named(names, param, code):
    with pytest.raises(ApiError, match=param) as caught:
        require_fields(names)
    assert (caught.value.body["error"]["param"], caught.value.body["error"]["code"]) == (param, code)
    require_fields(["purpose", "file"])


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("train.jsonl", "train.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\rows.jsonl", "rows.jsonl"),
        ("/etc/", "upload.jsonl"),
        ("..", "upload.jsonl"),
        ("", "upload.jsonl"),
        ("a\x00b\r\nSet-Cookie: x", "abSet-Cookie: x"),
        ("\u202egnp.exe", "gnp.exe"),
        ("naïve 数.jsonl", "naïve 数.jsonl"),
        ("x" * 5000, "x" * 255),
    ],
)
def test_a_filename_is_only_a_name(hostile, shown):
    assert safe_name(hostile) == shown
