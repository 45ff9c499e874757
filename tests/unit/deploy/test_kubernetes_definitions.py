"""Definitions of other projects' resources: what is taken from their packages, and what is said where it is not."""

from pathlib import Path

import pytest

from deploy.kubernetes import definitions
from deploy.local.errors import MissingPart

ANSWERS = """#!/bin/sh
for module in "$@"; do :; done
printf '{{"Dir": "{root}", "Sum": "%s"}}' "$(grep -F "$module " {root}/sums | cut -d' ' -f2)"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """What Go's module cache would have."""
    root = tmp_path / "modules"
    for _, paths in definitions.MODULES.values():
        for path in paths:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f"kind: {path}\n")
    sums = "".join(f"{module} {checksum}\n" for module, (checksum, _) in definitions.MODULES.items())
    (root / "sums").write_text(sums)
    return root


@pytest.fixture
def go(tmp_path: Path, modules: Path) -> Path:
    path = tmp_path / "go"
    path.write_text(ANSWERS.format(root=modules))
    path.chmod(0o755)
    return path


def write_strimzi(folder: Path) -> None:
    for name in definitions.CLASSES.values():
        (folder / name).write_text("kind: Kafka\n")


def test_a_cache_without_them_names_the_command_that_fetches_them(cache):
    with pytest.raises(
        MissingPart, match=rf"no definitions of resources in {cache}/.*`make setup-kubernetes`"
    ):
        definitions.definitions()


def test_they_are_files_of_the_modules_and_what_strimzis_generator_writes(go, monkeypatch):
    monkeypatch.setattr(definitions, "_generate", write_strimzi)
    files = definitions.set_up(go)
    assert {path.name for path in files} == definitions.FILES
    [cluster] = [path for path in files if "clusters" in path.name]
    assert cluster.read_text() == "kind: config/crd/bases/postgresql.cnpg.io_clusters.yaml\n"
    go.unlink()
    assert definitions.set_up(go) == definitions.definitions() == files


def test_a_module_that_was_changed_is_refused(go, modules, monkeypatch, cache):
    monkeypatch.setattr(definitions, "_generate", write_strimzi)
    (modules / "sums").write_text((modules / "sums").read_text().replace("h1:R6z2", "h1:changed"))
    with pytest.raises(MissingPart, match=r"keda/v2@v2\.21\.0: expected the checksum h1:R6z2.* \[h1:changed"):
        definitions.set_up(go)
    assert [path for path in cache.iterdir() if path.is_dir()] == []
