"""How often an open page is looked at."""

from types import SimpleNamespace

import pytest

from services.gateway.page import streams
from services.gateway.page.streams import Changes


class Clock:
    """Time that passes by looks and pauses alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


async def _true(*_: object) -> bool:
    return True


async def _none(*_: object) -> int:
    return 0


@pytest.mark.parametrize(("look_seconds", "pause"), [(0.004, 0.5), (0.2, 0.8), (3.0, 4.0)])
async def test_one_whose_look_takes_long_is_looked_at_less_often(monkeypatch, look_seconds, pause):
    clock, looks = Clock(), []
    monkeypatch.setattr(streams, "time", clock)
    monkeypatch.setattr(streams, "asyncio", clock)
    monkeypatch.setattr(streams, "count_open_alerts", _none)
    monkeypatch.setattr(streams, "sessions", SimpleNamespace(is_open=_true))
    gateway = SimpleNamespace(is_stopping=False, service=SimpleNamespace(database=None))
    visitor = SimpleNamespace(principal=SimpleNamespace(tenant="demo"))

    async def look(last: str) -> Changes:
        looks.append(last)
        clock.now += look_seconds
        gateway.is_stopping = len(looks) == 3
        return Changes(f"{len(looks)}")

    async for _ in streams._events(None, gateway, visitor, look, "0"):
        pass
    assert looks == ["0", "1", "2"]
    assert clock.pauses == pytest.approx([pause] * 3)
