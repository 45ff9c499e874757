"""One look wakes each loop that has something to do, and no other; the next comes when the next timer is due."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shared.messaging import due
from shared.messaging.due import LOOK, POLL_SECONDS, SHORTEST_SECONDS, Due

NOTHING = {"outbox": False, "waiting": False, "parked": False, "task": False, "timer_in": None}


class Postgres:
    """Gives these answers, then the error of one that is away."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[object, ...]] = []

    async def fetchrow(self, query: str, *args: object) -> dict[str, Any]:
        self.asked.append((query, *args))
        if not self._answers:
            raise ConnectionRefusedError("nobody listens")
        return self._answers.pop(0)


class Ended(Exception):
    pass


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise Ended

    monkeypatch.setattr(due.asyncio, "sleep", sleep)
    return pauses


async def woken_by(*answers: dict[str, Any]) -> set[str]:
    loops: dict[str, Any] = {
        name: SimpleNamespace(wake_event=asyncio.Event(), kinds=["Chore"], handlers={"Reminder": None})
        for name in ("relay", "waiting", "followers", "tasks", "timers")
    }
    postgres: Any = Postgres(*answers)
    looking = Due(postgres, **loops)
    with pytest.raises(Ended):
        await looking.run()
    assert postgres.asked == [(LOOK, ["Chore"], ["Reminder"])] * 2
    return {name for name, loop in loops.items() if loop.wake_event.is_set()}


@pytest.mark.parametrize(
    ("table", "loop"),
    [("outbox", "relay"), ("waiting", "waiting"), ("parked", "followers"), ("task", "tasks")],
)
async def test_the_loop_whose_table_has_rows_is_woken(pauses, table, loop):
    assert await woken_by(NOTHING | {table: True}) == {loop}
    assert pauses == [POLL_SECONDS, POLL_SECONDS]


@pytest.mark.parametrize("late", [0.0, -3.0])
async def test_a_timer_that_is_due_is_woken(pauses, late):
    assert await woken_by(NOTHING | {"timer_in": late}) == {"timers"}


@pytest.mark.parametrize(
    ("seconds", "pause"), [(0.2, 0.2), (0.0001, SHORTEST_SECONDS), (3600.0, POLL_SECONDS)]
)
async def test_the_next_look_is_when_the_next_timer_is_due(pauses, seconds, pause):
    assert await woken_by(NOTHING | {"timer_in": seconds}) == set()
    assert pauses == [pause, POLL_SECONDS]


async def test_it_continues_while_postgres_is_away(pauses):
    assert await woken_by() == set()
    assert pauses == [POLL_SECONDS, POLL_SECONDS]
