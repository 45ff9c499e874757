"""A file is there whole or not at all, whoever else writes it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.files import create_whole, write_whole


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_a_file_is_replaced_and_is_its_owners_alone(path):
    write_whole(path, "old", mode=0o644)
    write_whole(path, b"new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)
    assert list(path.parent.iterdir()) == [path]


def test_of_writers_at_once_one_creates_the_file(path):
    with ThreadPoolExecutor(8) as pool:
        wrote = list(pool.map(lambda number: create_whole(path, str(number)), range(32)))
    assert wrote.count(True) == 1
    assert path.read_text() == str(wrote.index(True))
    assert list(path.parent.iterdir()) == [path]


def test_writers_of_one_file_at_once_do_not_mix(path):
    contents = [str(number) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: write_whole(path, content), contents))
    assert path.read_text() in contents


def test_a_write_that_fails_leaves_what_was_there(path, monkeypatch):
    write_whole(path, "old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_no_folder_is_made(path):
    with pytest.raises(FileNotFoundError):
        write_whole(path / "within", "text")
