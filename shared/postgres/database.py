"""The pool of a process, in the service's own schema, and the classes of errors of an unavailable Postgres."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from pydantic_core import PydanticSerializationError, from_json, to_json

from shared.log import get_logger
from shared.settings import ServiceSettings
from shared.tls import client_context

log = get_logger(__name__)

Connection = PoolConnectionProxy

BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.InsufficientResourcesError,  # its disk is full, or its memory, or it has too many clients
    asyncpg.PostgresSystemError,
)

_STATE_LOST = asyncpg.InternalClientError
"""The driver lost its state, as when a connection broke within an answer; only this connection is affected."""

CONTENDED = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)
"""Errors of contention: another transaction was faster or left locks, so roll back and try again."""

_OVERDUE = (asyncpg.QueryCanceledError, TimeoutError)
"""Errors of a time limit: the statement itself took too long, or Postgres serves no client in time."""

ANSWER_SECONDS = 5.0
WRITE = "SELECT pg_logical_emit_message(true, 'retune', 'is there room and time')"
"""Statement that writes an unused record to Postgres' log and flushes it to disk."""


def is_unavailable(error: BaseException) -> bool:
    """Return whether Postgres is unavailable or contended, so that waiting helps and no attempt should be counted."""
    return isinstance(error, _AWAY) or may_be_its_own(error)


def may_be_its_own(error: BaseException) -> bool:
    """Return whether one statement can meet this error of unavailability repeatedly while all others succeed."""
    is_broken_connection = isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError)
    return isinstance(error, (*_OVERDUE, *CONTENDED, _STATE_LOST)) or is_broken_connection


async def false_if_unavailable(step: Awaitable[bool]) -> bool:
    """Return the result of a loop's step, or False if Postgres was unavailable, for the loop to try again later."""
    try:
        return await step
    except Exception as error:
        if not is_unavailable(error):
            raise
        log.warning("database is away", error=f"{type(error).__name__}: {error}")
        return False


def is_unstorable(error: BaseException) -> bool:
    """Return whether a value does not fit its column or is no text, so that no further attempt can help."""
    # asyncpg itself reports what it cannot encode as InterfaceError, which is then a ValueError too.
    is_not_encoded = isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
    is_no_text = isinstance(error, UnicodeEncodeError | PydanticSerializationError)
    return isinstance(error, asyncpg.DataError) or is_not_encoded or is_no_text


class Silent(TimeoutError):
    """Postgres gave no answer in time."""


class NotConnected(ConnectionError):
    """There is no connection to Postgres, and none could be opened, whichever error the driver met."""


class _Connection(asyncpg.Connection):
    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109, its own signature
        """Close without the protocol's termination message: the server needs none, and a silent one would block."""
        self.terminate()


class Database:
    """A pool whose connections see only the service's own schema.

    A connection without an answer for the time of `silence` is taken for dead and raises Silent. No transaction
    takes longer than twice that time.
    """

    def __init__(
        self,
        dsn: str,
        *,
        application: str,
        max_size: int = 10,
        silence: timedelta = timedelta(seconds=15),
        ca_file: Path | None = None,
    ) -> None:
        """ca_file: authorities that the server is verified with over TLS; None leaves TLS to the DSN."""
        self._dsn = dsn
        self._ssl = client_context(ca_file)
        self._application = application
        self._max_size = max_size
        self._silence_seconds = silence.total_seconds()
        self._pool: asyncpg.Pool | None = None
        self._clock_ahead = timedelta(0)
        """Difference of Postgres' clock and this machine's monotonic clock."""
        self._away_since: float | None = None

    @classmethod
    def from_settings(cls, settings: ServiceSettings, *, application: str) -> "Database":
        return cls(
            settings.postgres_dsn.get_secret_value(),
            application=application,
            silence=settings.timing.postgres_silence,
            ca_file=settings.tls.ca_file,
        )

    async def open(self) -> None:
        async with self._track_availability():
            self._pool = await self._create_pool()

    async def _create_pool(self) -> asyncpg.Pool:
        silence = self._silence_seconds
        return await asyncpg.create_pool(
            self._dsn,
            ssl=self._ssl,
            min_size=1,
            max_size=self._max_size,
            timeout=silence,
            command_timeout=silence,
            init=self._prepare,
            reset=_leave_as_it_is,
            connection_class=_Connection,
            server_settings={
                "application_name": self._application,
                "statement_timeout": _milliseconds(silence),
                # Locks of a dead client of ours are released before its successor starts; if it died within a
                # request, as between Parse and Bind, only the second of these applies.
                "idle_in_transaction_session_timeout": _milliseconds(silence),
                "transaction_timeout": _milliseconds(silence * 2),
                "lock_timeout": _milliseconds(silence * 2 / 3),
                # These end its session, which would otherwise last for two hours, in up to twice the silence.
                "tcp_keepalives_idle": str(max(1, int(silence))),
                "tcp_keepalives_interval": str(max(1, int(silence / 3))),
                "tcp_keepalives_count": "3",
            },
        )

    @property
    def away_seconds(self) -> float:
        """Return for how many seconds Postgres has been unavailable; 0 while it answers."""
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    async def takes_writes(self) -> bool:
        """Return whether Postgres completes a write for a new connection within ANSWER_SECONDS."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                conn = await asyncpg.connect(self._dsn, ssl=self._ssl, connection_class=_Connection)
                try:
                    await conn.execute(WRITE)
                finally:
                    conn.terminate()
        except Exception as error:
            if not is_unavailable(error):
                raise
            return False
        return True

    def now(self) -> datetime:
        """Return the time of Postgres' clock, which all services share, whatever this machine's clock shows."""
        return _never_set() + self._clock_ahead

    async def read_clock(self) -> None:
        async with self._connection() as conn:
            await self._read_clock(conn)

    async def _prepare(self, conn: asyncpg.Connection) -> None:
        await register_json(conn)
        await self._read_clock(conn)

    async def _read_clock(self, conn: Any) -> None:
        """Read Postgres' clock; `now` is ahead of it only by relative drift, as the answer's latency is not added."""
        self._clock_ahead = await conn.fetchval("SELECT clock_timestamp()") - _never_set()

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    @property
    def pool(self) -> asyncpg.Pool:
        if self._pool is None:
            raise NotConnected("Postgres has not answered since the process began")
        return self._pool

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        return self._in_transaction()

    def snapshot(self) -> AbstractAsyncContextManager[Connection]:
        """Open a read-only transaction whose reads all see the tables as of one moment."""
        return self._in_transaction(isolation="repeatable_read", readonly=True)

    @asynccontextmanager
    async def _in_transaction(self, **options: Any) -> AsyncIterator[Connection]:
        async with self._connection() as conn, conn.transaction(**options):
            try:
                yield conn
            except (TimeoutError, _STATE_LOST):
                await self._drop(conn)
                raise

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        async with self._track_availability():
            pool = self.pool
            conn = await self._acquire_from(pool)
            try:
                yield conn
            except (TimeoutError, _STATE_LOST):
                await self._drop(conn)
                raise
            finally:
                await pool.release(conn)

    async def _acquire_from(self, pool: asyncpg.Pool) -> Connection:
        """Raise NotConnected for whatever the driver meets at a new connection; not all has a class of its own."""
        try:
            return await pool.acquire(timeout=self._silence_seconds)
        except TimeoutError:
            raise
        except OSError as error:
            raise NotConnected(f"{type(error).__name__}: {error}") from error

    @asynccontextmanager
    async def _track_availability(self) -> AsyncIterator[None]:
        """Record since when Postgres is unavailable. Raises Silent in place of any other TimeoutError."""
        try:
            yield
        except _AWAY as error:
            self._away_since = self._away_since or time.monotonic()
            if isinstance(error, TimeoutError):
                raise Silent(f"no answer within {self._silence_seconds:g} s") from error
            raise
        self._away_since = None

    async def _drop(self, lost: Connection) -> None:
        """Drop all connections: a cancel or rollback would take as long again, and so would each idle connection."""
        lost.terminate()
        await self.pool.expire_connections()

    async def fetch(self, query: str, *args: object) -> list[asyncpg.Record]:
        async with self._connection() as conn:
            return await conn.fetch(query, *args)

    async def fetchrow(self, query: str, *args: object) -> asyncpg.Record | None:
        async with self._connection() as conn:
            return await conn.fetchrow(query, *args)

    async def fetchval(self, query: str, *args: object) -> Any:
        async with self._connection() as conn:
            return await conn.fetchval(query, *args)

    async def execute(self, query: str, *args: object) -> str:
        async with self._connection() as conn:
            return await conn.execute(query, *args)


def _never_set() -> datetime:
    """Return this machine's monotonic time, counted from an arbitrary date."""
    return BEGINNING + timedelta(seconds=time.monotonic())


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


async def _leave_as_it_is(_connection: Any) -> None:
    """Reset nothing: no setting outlives a transaction, and the default reset would be a round trip each time."""


async def lock_name(conn: Connection, name: str) -> None:
    """Make other transactions that lock this name wait until this one ends.

    This serves two messages that each write one row and read the other's: the second must see the first.
    """
    await conn.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", name)


async def register_json(conn: Any) -> None:
    """Let the connection take and give jsonb as Python values."""
    # Binary, so that COPY works as well; jsonb's binary form has a leading version byte.
    await conn.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        format="binary",
        encoder=lambda value: b"\x01" + to_json(value),
        decoder=lambda raw: from_json(raw[1:]),
    )
