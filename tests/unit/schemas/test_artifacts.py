import pytest
from pydantic import ValidationError

from schemas.artifacts import FileEntry
from tests.builders import a_sha


def an_entry(path: str) -> FileEntry:
    return FileEntry(path=path, size_bytes=1, sha256=a_sha("x"))


@pytest.mark.parametrize("path", ["config.json", "model/model.safetensors", "state/rank0..1", "a b/ü"])
def test_a_file_of_an_artifact_has_a_relative_path(path):
    assert an_entry(path).path == path


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../x", "a//b", "a/", "./a", "a\\b", "a\0"])
def test_a_path_that_leads_elsewhere_is_refused(path):
    with pytest.raises(ValidationError, match="no relative path"):
        an_entry(path)
