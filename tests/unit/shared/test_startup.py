"""A service begins however long Postgres is away, and serves HTTP meanwhile."""

import asyncio
from datetime import timedelta

import pytest

from shared import startup
from shared.messaging.kafka import KafkaFailed
from shared.retry import RetryPolicy
from shared.startup import Startup
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(startup, "LOOK_SECONDS", 0.001)
    retry_policy = RetryPolicy(limit=timedelta.max, shortest=timedelta(0), longest=timedelta(0))
    monkeypatch.setattr(startup, "FOR_EVER", retry_policy)


class Postgres:
    def __init__(self) -> None:
        self.is_there = asyncio.Event()
        self.was_tried = asyncio.Event()

    @property
    def away_seconds(self) -> float:
        return 0.0 if self.is_there.is_set() or not self.was_tried.is_set() else 1.0

    async def open(self) -> None:
        self.was_tried.set()
        await asyncio.sleep(0)
        if not self.is_there.is_set():
            raise ConnectionRefusedError("nobody listens")


async def test_it_continues_without_postgres_and_what_needs_it_begins_once_it_is_back():
    postgres, steps = Postgres(), []

    async def hook() -> None:
        steps.append("hook")

    async def loop() -> None:
        steps.append("loop")

    start = Startup(postgres, [hook])
    await asyncio.wait_for(start.wait_until_done_or_unavailable(), 10)
    waiting = asyncio.create_task(start.then(loop))
    for _ in range(100):
        postgres.was_tried.clear()
        await asyncio.wait_for(postgres.was_tried.wait(), PATIENCE_SECONDS)
    assert (start.is_done, steps) == (False, [])
    postgres.is_there.set()
    await asyncio.wait_for(waiting, 10)
    assert (start.is_done, steps) == (True, ["hook", "loop"])


@pytest.mark.parametrize("error", [KafkaFailed("away"), ConnectionResetError("cut")])
async def test_a_hook_is_called_again_where_what_it_needs_is_away(error):
    postgres, calls = Postgres(), []
    postgres.is_there.set()

    async def hook() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise error

    start = Startup(postgres, [hook])
    await asyncio.wait_for(start.wait_until_done_or_unavailable(), 10)
    assert (start.is_done, len(calls)) == (True, 3)


@pytest.mark.parametrize("error", [FileNotFoundError("no pools.toml"), ValueError("a fault of ours")])
async def test_what_only_a_person_can_repair_ends_the_start(error):
    postgres = Postgres()
    postgres.is_there.set()

    async def hook() -> None:
        raise error

    start = Startup(postgres, [hook])
    with pytest.raises(type(error)):
        await asyncio.wait_for(start.wait_until_done_or_unavailable(), 10)


async def test_a_service_can_stop_while_it_still_waits():
    start = Startup(Postgres(), [])
    await asyncio.wait_for(start.wait_until_done_or_unavailable(), 10)
    await asyncio.wait_for(start.cancel(), 10)
    assert not start.is_done
