"""What the release before this one can do with this one's messages and schemas."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import schemas.topics  # noqa: F401 - imports every message
from schemas.base import Spec
from tests.releases import PREVIOUS, REPOSITORY, unpack_previous

TAKES_AWAY = re.compile(
    r"\b(DROP\s+(TABLE|COLUMN|VIEW|FUNCTION|TYPE)|RENAME|SET\s+NOT\s+NULL|TYPE\s+\w+\s+USING)\b",
    re.IGNORECASE,
)
NOT_USED_ANY_MORE: Mapping[str, str] = {}
"""Migrations that take something away, by their file, and why the release before no longer needs it."""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release = unpack_previous(tmp_path_factory.mktemp("previous"), "schemas/json", "services", "shared")
    if release is None:
        pytest.skip(f"this clone does not reach back to {PREVIOUS[:8]}, the release before")
    return release


@pytest.fixture(scope="module")
def known(previous: Path) -> dict[str, set[str]]:
    """Fields of each request in the messages of the release before, by the name of its class."""
    return {
        name: set(definition["properties"])
        for path in sorted((previous / "schemas/json").glob("*.json"))
        for name, definition in json.loads(path.read_text()).get("$defs", {}).items()
        if definition.get("additionalProperties") is False
    }


def requests(base: type[Spec] = Spec) -> Iterator[type[Spec]]:
    for each in base.__subclasses__():
        yield each
        yield from requests(each)


def test_a_field_that_it_does_not_know_is_not_written_while_it_is_none(known: dict[str, set[str]]):
    assert "JobSpec" in known
    for request in requests():
        for name, field in request.model_fields.items():
            if name not in known.get(request.__name__, {name}):
                where = f"{request.__name__}.{name}"
                assert field.default is None, f"{where}: found {field.default!r}, expected None as default"
                assert field.exclude_if is not None, f"{where}: expected Field(exclude_if=is_none)"


def migrations(tree: Path) -> dict[str, str]:
    """SQL by its file."""
    folders = ("services/*/migrations", "shared/postgres/kernel")
    paths = (path for folder in folders for path in tree.glob(f"{folder}/*.sql"))
    return {str(path.relative_to(tree)): path.read_text() for path in paths}


def test_its_services_find_on_the_new_schema_what_was_there(previous: Path):
    before, now = migrations(previous), migrations(REPOSITORY)
    assert before
    assert before.keys() <= now.keys()
    taking = {name for name in now.keys() - before.keys() if TAKES_AWAY.search(now[name])}
    assert taking == NOT_USED_ANY_MORE.keys()
