"""Which errors of a task are its own, which say that something it needs is away, and what idle workers ask."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from aiokafka.errors import KafkaConnectionError

from shared.errors import CorruptObject, Rejected, StorageUnavailable
from shared.messaging.tasks import TaskKind, Tasks, unavailable_dependency
from shared.messaging.unit import Task
from shared.postgres.database import Silent
from tests.waiting import PATIENCE_SECONDS

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
    assert unavailable_dependency(error) == dependency


class Idle:
    """A database without tasks that counts what it is asked."""

    def __init__(self, expected: int) -> None:
        self.asked = 0
        self._expected = expected
        self.are_asked = asyncio.Event()

    async def execute(self, query: str, *_: object) -> str:
        return ""

    async def fetchval(self, query: str, kinds: list[str]) -> bool:
        self.asked += 1
        if self.asked == self._expected:
            self.are_asked.set()
        return False


async def test_of_many_idle_workers_none_asks_without_a_wake():
    idle: Any = Idle(expected=8)
    seconds = timedelta(seconds=1)
    working = Tasks(idle, service="a", owner="a-0", ttl=seconds, renew=seconds, wake=lambda: None)
    for kind in (Nothing, NothingElse):
        working.on(TaskKind(kind, ignore, ignore, ignore, attempts=1, concurrency=4))
    running = asyncio.create_task(working.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await idle.are_asked.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert idle.asked == 8
    working.wake_event.set()
    for _ in range(100):
        await asyncio.sleep(0)
    assert idle.asked == 16
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Nothing(Task):
    pass


class NothingElse(Task):
    pass


async def ignore(*_: object) -> None:
    pass
