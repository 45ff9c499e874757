"""One pool per process, in the service's own schema; what Postgres says when it cannot be reached."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

Connection = PoolConnectionProxy

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
)


def is_unavailable(error: BaseException) -> bool:
    """Whether Postgres is away, so that waiting helps and no attempt should be counted."""
    # asyncpg also reports values of the wrong type as InterfaceError; those are ValueErrors and our bugs.
    is_broken_connection = isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError)
    return isinstance(error, _AWAY) or is_broken_connection


CONTENDED = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)
"""Somebody else was faster: roll back and try again."""


class Database:
    """A pool whose connections see only the service's own schema."""

    def __init__(self, dsn: str, *, application: str, max_size: int = 10) -> None:
        self._dsn = dsn
        self._application = application
        self._max_size = max_size
        self._pool: asyncpg.Pool | None = None

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(
            self._dsn,
            min_size=1,
            max_size=self._max_size,
            command_timeout=30,
            init=_register_json,
            server_settings={
                "application_name": self._application,
                "statement_timeout": "30s",
                "idle_in_transaction_session_timeout": "30s",
                "lock_timeout": "10s",
            },
        )

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    @property
    def pool(self) -> asyncpg.Pool:
        assert self._pool is not None, "the database is used before open()"
        return self._pool

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.pool.acquire(timeout=30) as conn, conn.transaction():
            yield conn

    async def fetch(self, query: str, *args: object) -> list[asyncpg.Record]:
        return await self.pool.fetch(query, *args)

    async def fetchrow(self, query: str, *args: object) -> asyncpg.Record | None:
        return await self.pool.fetchrow(query, *args)

    async def fetchval(self, query: str, *args: object) -> Any:
        return await self.pool.fetchval(query, *args)

    async def execute(self, query: str, *args: object) -> str:
        return await self.pool.execute(query, *args)


async def _register_json(conn: Any) -> None:
    # Binary, so that COPY works as well; jsonb's binary form has a leading version byte.
    await conn.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        format="binary",
        encoder=lambda value: b"\x01" + json.dumps(value).encode(),
        decoder=lambda raw: json.loads(raw[1:]),
    )
