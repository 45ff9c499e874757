"""Which errors of a task are its own, which say that something it needs is away, and what idle workers ask."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from aiokafka.errors import KafkaConnectionError

from shared.errors import CorruptObject, Rejected, StorageUnavailable
from shared.messaging import tasks
from shared.messaging.tasks import TaskKind, Tasks, absent_dependency
from shared.messaging.unit import Task
from shared.postgres.database import Silent

NOT_REACHED = OSError(113, "No route to host")
S3 = StorageUnavailable("GET x: 503")


@pytest.mark.parametrize(
    ("error", "dependency"),
    [
        (S3, "the object store"),
        (KafkaConnectionError("no broker"), "Kafka"),
        (ConnectionRefusedError("nobody listens"), "Postgres"),
        (NOT_REACHED, "Postgres"),
        (Silent("no answer within 15 s"), "Postgres"),
        (asyncpg.CannotConnectNowError("the database system is starting up"), "Postgres"),
        (asyncpg.InternalClientError("cannot switch to state 12"), "Postgres"),
        (ExceptionGroup("two parts", [S3, S3]), "the object store"),
        (ExceptionGroup("a part and a fault", [S3, KeyError("x")]), None),
        (TimeoutError("a child that hangs"), None),
        (FileNotFoundError("scratch"), None),
        (BrokenPipeError("a child that is gone"), None),
        (CorruptObject("other bytes"), None),
        (Rejected("cannot be done"), None),
        (RuntimeError("ours"), None),
    ],
    ids=repr,
)
def test_an_absence_has_a_name(error, dependency):
    assert absent_dependency(error) == dependency


class Idle:
    """A database without tasks that counts what it is asked."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.polled = asyncio.Event()

    async def execute(self, query: str, *_: object) -> str:
        return ""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Idle"]:
        yield self

    async def fetchrow(self, query: str, *_: object) -> None:
        self.asked[query] += 1

    async def fetchval(self, query: str, *_: object) -> bool:
        self.asked[query] += 1
        if self.asked[query] == 50:
            self.polled.set()
        return False


async def test_of_many_idle_workers_none_asks_by_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "POLL_SECONDS", 0.001)
    idle: Any = Idle()
    seconds = timedelta(seconds=1)
    working = Tasks(idle, service="a", owner="a-0", ttl=seconds, renew=seconds, poke=lambda: None)
    working.on(TaskKind(Nothing, ignore, ignore, ignore, attempts=1, concurrency=8))
    running = asyncio.create_task(working.run())
    async with asyncio.timeout(30):
        await idle.polled.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert idle.asked[tasks.CLAIM] == 8


class Nothing(Task):
    pass


async def ignore(*_: object) -> None:
    pass
