"""A timer that fails while Postgres goes away: its loop continues."""

import asyncio
from contextlib import asynccontextmanager

import asyncpg
from pydantic import BaseModel
from structlog.testing import capture_logs

from shared.messaging import timers
from shared.messaging.timers import Timers
from tests.builders import NOON


class Ring(BaseModel): ...


class Transaction:
    async def fetchrow(self, query, *args):
        return {
            "id": 1,
            "type": "Ring",
            "payload": {},
            "fires_at": NOON,
            "traceparent": None,
            "correlation_id": None,
        }


class Going:
    """Postgres is gone when the timer of a handler that failed is to be postponed."""

    def __init__(self):
        self.postponed = 0
        self.often = asyncio.Event()

    def now(self):
        return NOON

    async def fetchval(self, query, *args):
        return True

    @asynccontextmanager
    async def transaction(self):
        yield Transaction()

    async def fetchrow(self, query, *args):
        self.postponed += 1
        if self.postponed == 3:
            self.often.set()
        raise asyncpg.AdminShutdownError("terminating connection due to administrator command")


async def fail(payload, unit):
    raise ValueError("a fault of the handler")


class Flaky:
    """Postgres closes the connection of each handler, and takes what others write."""

    def __init__(self):
        self.taken = 0
        self.often = asyncio.Event()

    def now(self):
        return NOON

    async def fetchval(self, query, *args):
        return True

    async def takes_writes(self):
        return True

    @asynccontextmanager
    async def transaction(self):
        self.taken += 1
        if self.taken == 3:
            self.often.set()
        yield Transaction()


async def lose_connection(payload, unit):
    raise ConnectionResetError("connection reset by peer")


async def test_a_timer_whose_connection_is_lost_waits_and_nobody_is_called(monkeypatch):
    monkeypatch.setattr(timers, "WITHOUT_A_WAKE_SECONDS", 0.0)
    database = Flaky()
    loop = Timers(database, service="tracker", wake=lambda: None)
    loop.on(Ring, lose_connection)
    with capture_logs() as entries:
        running = asyncio.create_task(loop.run())
        often = asyncio.create_task(database.often.wait())
        await asyncio.wait({running, often}, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done()
        assert {entry["log_level"] for entry in entries} == {"warning"}
        running.cancel()
        often.cancel()


async def test_a_loop_outlives_a_postgres_that_goes_between_two_statements(monkeypatch):
    monkeypatch.setattr(timers, "WITHOUT_A_WAKE_SECONDS", 0.0)
    database = Going()
    loop = Timers(database, service="tracker", wake=lambda: None)
    loop.on(Ring, fail)
    running = asyncio.create_task(loop.run())
    often = asyncio.create_task(database.often.wait())
    await asyncio.wait({running, often}, return_when=asyncio.FIRST_COMPLETED)
    assert not running.done()
    running.cancel()
    often.cancel()
