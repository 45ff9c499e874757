"""Programs of the distribution's packages: what says that they are missing, and why they were not installed."""

from pathlib import Path

import pytest

from deploy.local.errors import MissingPart
from deploy.packages import Packages

THEIRS = Packages("Theirs", names=("their-package",), programs=("theirs",), target="setup-theirs")


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("deploy.packages.DAEMONS", str(tmp_path / "sbin"))
    return tmp_path


def put(path: Path, script: str = "exit 0") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_program_is_looked_for_where_daemons_are_too(on_path: Path):
    put(on_path / "sbin/theirs")
    assert THEIRS.paths() == {"theirs": on_path / "sbin/theirs"}


def test_what_is_missing_is_named_with_what_installs_it(on_path: Path):
    with pytest.raises(
        MissingPart, match=r"no Theirs \(theirs missing\): run `make setup-theirs` .* their-package"
    ):
        THEIRS.paths()


def test_nobody_but_root_installs(on_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(on_path / "apt-get", f"touch {on_path}/asked")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(MissingPart, match="make setup-theirs"):
        THEIRS.set_up()
    assert not (on_path / "asked").exists()


def test_root_installs_the_packages(on_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(on_path / "env", 'while [ "${1#*=}" != "$1" ]; do shift; done; exec "$@"')
    put(
        on_path / "apt-get",
        f'case "$*" in *install*their-package) : > {on_path}/theirs; /bin/chmod 755 {on_path}/theirs;; esac',
    )
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert THEIRS.set_up() == {"theirs": on_path / "theirs"}


def test_an_installation_that_failed_says_why(on_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(on_path / "env", 'while [ "${1#*=}" != "$1" ]; do shift; done; exec "$@"')
    put(on_path / "apt-get", "echo 'E: no such package' >&2; exit 100")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(
        MissingPart, match=r"Theirs was not installed: .*apt-get.* failed \[E: no such package\]"
    ):
        THEIRS.set_up()
