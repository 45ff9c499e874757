import pytest

from schemas.specification import DatasetFormat
from services.gateway.errors import ApiError
from services.gateway.uploads import look_at, require_purpose


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (b'{"messages": []}', DatasetFormat.CHAT),
        (b'{"prompt": "a", "completion": "b"}', DatasetFormat.PROMPT_COMPLETION),
        (b'{"prompt": "a", "chosen": "b", "rejected": "c"}', DatasetFormat.PREFERENCE),
        (b'{"input": {}, "preferred_output": [], "non_preferred_output": []}', DatasetFormat.PREFERENCE),
        (b'{"text": "a"}', DatasetFormat.TEXT),
    ],
)
def test_the_format_is_that_of_the_first_row(tmp_path, row, expected):
    path = tmp_path / "file"
    path.write_bytes(b"\n" + row + b"\n{}\n")
    assert look_at(path, purpose="fine-tune") == expected


@pytest.mark.parametrize(
    ("content", "told"),
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
def test_what_cannot_be_json_lines_is_refused_with_the_line(tmp_path, content, told):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ApiError, match=told) as caught:
        look_at(path, purpose="fine-tune")
    assert caught.value.body["error"]["param"] == "file"


def test_other_purposes_need_rows_but_no_format(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b'{"question": "a"}\n')
    assert look_at(path, purpose="benchmark") is None


def test_an_unknown_purpose_is_named():
    with pytest.raises(ApiError, match="purpose: found 'assistants'"):
        require_purpose("assistants")
