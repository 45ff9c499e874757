"""Programs of a Kubernetes control plane: where they are, and what says that they are not."""

from pathlib import Path

import pytest

from deploy.kubernetes import programs
from deploy.local.errors import MissingPart

BUILDS = """#!/bin/sh
for number in $(seq 250); do echo "k8s.io/package/$number" >&2; done
while [ "$1" != -o ]; do shift; done
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubectl; do touch "$2$name"; chmod +x "$2$name"; done
"""
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


def test_a_cache_without_them_names_the_command_that_builds_them(cache):
    with pytest.raises(MissingPart, match=rf"no Kubernetes .* in {cache}/.*run `make setup-kubernetes`"):
        programs.programs()


def test_they_are_built_once_with_lines_of_progress(cache, tmp_path, monkeypatch, capsys):
    use_go(monkeypatch, tmp_path, BUILDS)
    built = programs.set_up()
    assert set(built) == set(programs.PACKAGES)
    assert all(path.parent.parent == cache for path in built.values())
    printed = capsys.readouterr().out
    assert "  200 packages are downloaded or compiled, the last is k8s.io/package/200\n" in printed
    use_go(monkeypatch, tmp_path, FAILS)
    assert programs.set_up() == programs.programs() == built


def test_a_build_that_fails_leaves_nothing_and_says_what_go_said(cache, tmp_path, monkeypatch):
    use_go(monkeypatch, tmp_path, FAILS)
    with pytest.raises(MissingPart, match=r"did not build.*\[go: no such host\]"):
        programs.set_up()
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []
