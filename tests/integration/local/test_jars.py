"""The jars of the lock and no others, from any Maven repository."""

import functools
import hashlib
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy.local import jars
from deploy.local.jars import Jar


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven repository on this machine."""
    folder = tmp_path / "repository"
    folder.mkdir()
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("RETUNE_MAVEN_URL", f"http://127.0.0.1:{server.server_address[1]}")
        yield folder
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


def publish(repository: Path, content: bytes) -> Jar:
    """Put a jar where Maven looks for org.example:part:1.0, and lock what it should contain."""
    place = repository / "org/example/part/1.0"
    place.mkdir(parents=True)
    (place / "part-1.0.jar").write_bytes(content)
    return Jar("org.example", "part", "1.0", hashlib.sha256(content).hexdigest())


def test_the_lock_names_the_broker_and_every_jar_by_its_hash():
    locked = jars.locked_jars(jars.LOCK.read_text())
    assert ("kafka_2.13", "4.3.1") in {(jar.artifact, jar.version) for jar in locked}
    assert all(len(jar.sha256) == 64 for jar in locked)
    assert len({jar.file for jar in locked}) == len(locked)


def test_a_locked_jar_is_fetched_from_the_repository(repository: Path, tmp_path: Path):
    jar = publish(repository, b"content")
    assert jars.fetch_with_jgo(tmp_path, [jar]) == ""
    assert jars.wrong_jars(tmp_path, (jar,)) == []


def test_a_jar_with_another_hash_counts_as_missing(repository: Path, tmp_path: Path):
    jar = publish(repository, b"content")
    (repository / "org/example/part/1.0/part-1.0.jar").write_bytes(b"something else")
    jars.fetch_with_jgo(tmp_path, [jar])
    assert jars.wrong_jars(tmp_path, (jar,)) == [jar]
