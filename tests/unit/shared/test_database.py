"""What the pool raises where Postgres cannot be reached."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from shared.messaging.tasks import unavailable_dependency
from shared.postgres.database import Database, NotConnected, Silent, is_unavailable


@asynccontextmanager
async def a_database(port: int) -> AsyncIterator[Database]:
    """With a pool that has no connection yet."""
    dsn = f"postgresql://nobody:secret@127.0.0.1:{port}/nothing"
    database = Database(dsn, application="test", silence=timedelta(seconds=1))
    database._pool = await asyncpg.create_pool(dsn, min_size=0, max_size=1)
    yield database
    await database.close()


@asynccontextmanager
async def a_server(*, hangs_up: bool) -> AsyncIterator[int]:
    """The port of one that never says a word."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        if not hangs_up:
            await ended.wait()
        writer.close()

    ended = asyncio.Event()
    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        ended.set()


async def test_a_line_that_is_cut_before_the_first_word_is_an_absence_of_postgres():
    """The driver raises a bare ConnectionError there, which a task took for its own failure."""
    async with a_server(hangs_up=True) as port, a_database(port) as database:
        with pytest.raises(NotConnected, match="connection_lost") as cut:
            await database.execute("SELECT 1")
    assert is_unavailable(cut.value)
    assert unavailable_dependency(cut.value) == "Postgres"
    assert database.away_seconds > 0


async def test_a_port_on_which_nobody_listens_is_one_too():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with a_database(unused.getsockname()[1]) as database:
            with pytest.raises(NotConnected, match="ConnectionRefusedError") as refused:
                await database.fetchval("SELECT 1")
    assert unavailable_dependency(refused.value) == "Postgres"


async def test_a_server_that_says_nothing_is_silent():
    async with a_server(hangs_up=False) as port, a_database(port) as database:
        with pytest.raises(Silent) as silent:
            await database.execute("SELECT 1")
    assert unavailable_dependency(silent.value) == "Postgres"
