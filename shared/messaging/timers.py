"""Timers, which are rows; a due timer calls the same kind of handler as a message does."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from asyncpg import Record
from pydantic import BaseModel

from shared.log import get_logger
from shared.messaging.unit import Unit
from shared.messaging.wake import WITHOUT_A_WAKE_SECONDS, wait_for_wake
from shared.postgres.database import Connection, Database, false_if_unavailable
from shared.postgres.outage import is_outage
from shared.telemetry.tracing import span

log = get_logger(__name__)

TimerHandler = Callable[[Any, Unit], Awaitable[None]]
MAX_BACKOFF = timedelta(seconds=60)

IS_ANY_DUE = "SELECT EXISTS (SELECT FROM timer WHERE fires_at <= now() AND type = ANY($1))"

# The transaction's start time can be looked up in an index; clock_timestamp(), which moves, cannot.
TAKE = """
    DELETE FROM timer WHERE id = (
        SELECT id FROM timer WHERE fires_at <= now() AND type = ANY($1)
         ORDER BY fires_at FOR UPDATE SKIP LOCKED LIMIT 1)
    RETURNING id, type, payload, fires_at, traceparent, correlation_id"""

POSTPONE = """
    UPDATE timer SET attempts = least(attempts + 1, 20),
                     fires_at = clock_timestamp() + least($2, interval '1 second' * power(2, attempts))
     WHERE id = $1
    RETURNING type, attempts"""


class Timers:
    def __init__(self, database: Database, *, service: str, wake: Callable[[], None]) -> None:
        self._database = database
        self._service = service
        self._wake = wake
        self.wake_event = asyncio.Event()
        self.handlers: dict[str, tuple[type[BaseModel], TimerHandler]] = {}

    def on(self, payload: type[BaseModel], handler: TimerHandler) -> None:
        self.handlers[payload.__name__] = (payload, handler)

    async def run(self) -> None:
        while self.handlers:
            if not await false_if_unavailable(self._fire_next()):
                await wait_for_wake(self.wake_event, at_most_seconds=WITHOUT_A_WAKE_SECONDS)

    async def _fire_next(self) -> bool:
        """Fire the earliest due timer in one transaction with its handler; return whether there was one."""
        if not await self._database.fetchval(IS_ANY_DUE, list(self.handlers)):
            return False
        row = None
        try:
            async with self._database.transaction() as conn:
                row = await conn.fetchrow(TAKE, list(self.handlers))
                if row is None:
                    return False
                await self._fire(row, conn)
            self._wake()
        except Exception as error:
            if row is None or await is_outage(error, self._database):
                raise
            log.exception("timer failed", type=row["type"])
            await self._postpone(row["id"])
        return True

    async def _fire(self, row: Record, conn: Connection) -> None:
        payload_type, handler = self.handlers[row["type"]]
        # A handler that is given an earlier time than its timer's would not be due, and wait for ever.
        now = max(self._database.now(), row["fires_at"])
        unit = Unit(conn, self._service, now, correlation_id=row["correlation_id"])
        with span(f"timer {row['type']}", traceparent=row["traceparent"]):
            await handler(payload_type.model_validate(row["payload"]), unit)

    async def _postpone(self, timer_id: int) -> None:
        """Delay a failed timer by a back-off; until then those behind it have their turn."""
        row = await self._database.fetchrow(POSTPONE, timer_id, MAX_BACKOFF)
        if row is not None:
            log.error("timer postponed", type=row["type"], attempts=row["attempts"])
