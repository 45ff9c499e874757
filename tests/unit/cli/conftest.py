from collections.abc import Iterator

import pytest

from cli.commands import context
from tests.unit.cli.commandline import CommandLine, on


@pytest.fixture
def retune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    yield on(monkeypatch, capsys)
    for cached in (context.connection, context.api, context.admin_api):
        cached.cache_clear()
