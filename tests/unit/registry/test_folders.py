"""What an import takes of a folder or a repository, judged before a byte of it is copied."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.model import DirectorySource, HubSource
from services.registry.clients import BaseModelMirror
from services.registry.clients.folders import require_importable
from services.registry.decide.base_models import BadBaseModel
from shared.storage.testing import FakeObjectStore
from tests.unit.registry.builders import LIMITS, inspect
from tests.unit.registry.test_clients import COMMIT, MODEL, write


class AHub:
    """Says one thing of its repository, and may give another."""

    def __init__(self, sizes: dict[str, int], give: Callable[[Path], None]) -> None:
        self._sizes = sizes
        self._give = give

    def sizes(self, repository: str, commit: str) -> dict[str, int]:
        return self._sizes

    def download(self, repository: str, commit: str, into: Path) -> None:
        self._give(into)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", MODEL)


@pytest.fixture
def objects() -> FakeObjectStore:
    return FakeObjectStore()


def mirror(objects: FakeObjectStore, tmp_path: Path, hub: AHub | None = None) -> BaseModelMirror:
    hub = hub or AHub({}, lambda into: None)
    return BaseModelMirror(objects, hub, scratch=tmp_path / "scratch", limits=LIMITS, inspect=inspect)


def a_file_link(folder: Path) -> None:
    secret = folder.with_name("secret")
    secret.write_text("key")
    (folder / "special_tokens_map.json").symlink_to(secret)


def a_broken_link(folder: Path) -> None:
    (folder / "vocab.json").symlink_to("nowhere")


def a_directory_link(folder: Path) -> None:
    (folder / "original").symlink_to("/etc")


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "merges.txt")


def a_socket(folder: Path) -> None:
    opened = os.open(folder, os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(
            f"/proc/self/fd/{opened}/vocab.txt"
        )  # such a name may have 107 bytes, and folders of tests are deep
    os.close(opened)


def a_huge_file(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 2**40)


def many_files(folder: Path) -> None:
    write(folder, {f"vocab-{number}.txt": b"" for number in range(LIMITS.files)})


def a_large_sum(folder: Path) -> None:
    for number in range(5):
        (folder / f"model-{number}.safetensors").touch()
        os.truncate(folder / f"model-{number}.safetensors", LIMITS.file_bytes)


SPOILED = {
    a_file_link: r"model/special_tokens_map.json: found a symbolic link, expected a regular file; copy",
    a_broken_link: r"model/vocab.json: found a symbolic link, expected a regular file",
    a_directory_link: r"model/original: found a symbolic link, expected a regular file",
    a_pipe: r"model/merges.txt: found a named pipe, expected a regular file",
    a_socket: r"model/vocab.txt: found a socket, expected a regular file",
    a_huge_file: rf"model.safetensors in .*: found {2**40} bytes, expected at most {LIMITS.file_bytes}",
    many_files: r"found more than 20 files, expected at most 20",
    a_large_sum: rf"found \d+ bytes in \d+ files, expected at most {LIMITS.total_bytes}",
}


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
class TestWhatIsRefused:
    @pytest.mark.parametrize("training_template", [None, "{% generation %}x{% endgeneration %}"])
    async def test_of_a_folder(self, objects, folder, tmp_path, spoil, training_template):
        spoil(folder)
        with pytest.raises(BadBaseModel, match=SPOILED[spoil]):
            await mirror(objects, tmp_path).mirror(
                "tiny", DirectorySource(path=str(folder)), training_template
            )
        assert objects.objects == {}
        assert not (tmp_path / "scratch").exists()

    async def test_of_what_a_hub_has_given(self, objects, tmp_path, spoil):
        """Whatever it said before."""

        def give(into: Path) -> None:
            spoil(write(into / "model", MODEL))
            for path in (into / "model").iterdir():
                path.rename(into / path.name)
            (into / "model").rmdir()

        with pytest.raises(BadBaseModel, match=SPOILED[spoil].removeprefix("model/")):
            await mirror(objects, tmp_path, AHub({}, give)).mirror(
                "tiny", HubSource(repository="org/tiny", commit=COMMIT)
            )
        assert objects.objects == {}
        assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"model.safetensors": 2**40}, f"model.safetensors in hub:org/tiny@{COMMIT}: found {2**40} bytes"),
        ({f"{number}.json": 1 for number in range(21)}, f"hub:org/tiny@{COMMIT}: found more than 20 files"),
        ({f"{number}.json": 2**20 for number in range(5)}, f"found {5 * 2**20} bytes in 5 files"),
    ],
    ids=["a file", "the number", "the sum"],
)
async def test_a_repository_that_is_too_large_is_not_fetched(objects, tmp_path, sizes, message):
    def give(into: Path) -> None:
        raise AssertionError("it was fetched")

    with pytest.raises(BadBaseModel, match=message):
        await mirror(objects, tmp_path, AHub(sizes, give)).mirror(
            "tiny", HubSource(repository="org/tiny", commit=COMMIT)
        )


def test_the_folder_itself_is_no_link_and_no_file(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    for name, kind in (("link", "a symbolic link"), ("model/config.json", "a regular file")):
        with pytest.raises(BadBaseModel, match=f"{name}: found {kind}, expected a directory"):
            require_importable(tmp_path / name, LIMITS)


async def test_what_is_left_behind_does_not_count(objects, folder, tmp_path):
    """Folders, and files of other suffixes."""
    write(folder / "original", {"model.safetensors": b""})
    (folder / "video.mp4").touch()
    os.truncate(folder / "video.mp4", 2**40)
    assert (await mirror(objects, tmp_path).mirror("tiny", DirectorySource(path=str(folder)))).tensors
