"""OpenTelemetry's collector: where its program is, and what says that it is not."""

from pathlib import Path

import pytest

from deploy.collector import programs
from deploy.local.errors import MissingPart

BUILDS = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ntouch "$2/otelcol"; chmod +x "$2/otelcol"\n'
FAILS = "#!/bin/sh\necho 'go: no such host' >&2\nexit 1\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def use_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    path = tmp_path / "go"
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setattr(programs, "go", lambda at_least: path)


def test_a_cache_without_it_names_the_command_that_builds_it(cache: Path):
    with pytest.raises(MissingPart, match=rf"no collector .* in {cache}/.*run `make setup-collector`"):
        programs.program()


def test_it_is_built_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_go(monkeypatch, tmp_path, BUILDS)
    built = programs.set_up()
    assert built.parent.parent == cache
    use_go(monkeypatch, tmp_path, FAILS)
    assert programs.set_up() == built


def test_a_build_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_go(monkeypatch, tmp_path, FAILS)
    with pytest.raises(MissingPart, match=r"did not build.*\[go: no such host\]"):
        programs.set_up()
