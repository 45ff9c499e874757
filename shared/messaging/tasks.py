"""Leased tasks: work of minutes, outside any transaction, that survives crashes and reports by events.

Claim with a lease, work, apply only if the lease still holds. A task is done at least once; what it does
outside must be idempotent, what it writes inside happens once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from shared.clock import utc_now
from shared.errors import Rejected
from shared.log import get_logger, log_context
from shared.messaging.poke import until_poked
from shared.messaging.unit import Task, Unit
from shared.postgres.database import Database, is_unavailable, unless_away
from shared.telemetry.metrics import TASK_SECONDS, TASKS
from shared.telemetry.tracing import span

log = get_logger(__name__)

POLL_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

FREE_OWN = "UPDATE task SET lease_expires_at = NULL WHERE lease_owner = $1"

CLAIM = """
    UPDATE task SET lease_owner = $1, lease_epoch = lease_epoch + 1, attempts = attempts + 1,
                    lease_expires_at = clock_timestamp() + $3
     WHERE (kind, key) = (
        SELECT kind, key FROM task
         WHERE kind = $2 AND not_before <= clock_timestamp()
           AND (lease_expires_at IS NULL OR lease_expires_at < clock_timestamp())
         ORDER BY created_at FOR UPDATE SKIP LOCKED LIMIT 1)
    RETURNING key, payload, attempts, lease_epoch, traceparent, correlation_id"""

RENEW = """
    UPDATE task SET lease_expires_at = clock_timestamp() + $4
     WHERE kind = $1 AND key = $2 AND lease_epoch = $3 RETURNING true"""

FINISH = "DELETE FROM task WHERE kind = $1 AND key = $2 AND lease_epoch = $3 RETURNING true"

RETRY = """
    UPDATE task SET lease_expires_at = NULL, lease_owner = NULL, last_error = $4,
                    not_before = clock_timestamp() + $5
     WHERE kind = $1 AND key = $2 AND lease_epoch = $3"""


@dataclass(frozen=True)
class TaskKind:
    payload: type[Task]
    work: Callable[[Any], Awaitable[Any]]
    done: Callable[[Any, Any, Unit], Awaitable[None]]
    failed: Callable[[Any, Exception, Unit], Awaitable[None]]
    attempts: int
    concurrency: int

    @property
    def name(self) -> str:
        return self.payload.__name__


class LeaseLost(Exception):
    """Another process took the task over; what this one did is dropped."""


class Tasks:
    def __init__(
        self,
        database: Database,
        *,
        service: str,
        owner: str,
        ttl: timedelta,
        renew: timedelta,
        poke: Callable[[], None],
    ) -> None:
        self._database = database
        self._service = service
        self._owner = owner
        self._ttl = ttl
        self._renew_seconds = renew.total_seconds()
        self._poke = poke
        self._kinds: list[TaskKind] = []
        self.poked = asyncio.Event()

    def on(self, kind: TaskKind) -> None:
        self._kinds.append(kind)

    async def run(self) -> None:
        """One worker per kind and unit of concurrency, until cancelled."""
        await self._database.execute(FREE_OWN, self._owner)
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                for _ in range(kind.concurrency):
                    group.create_task(self._work_off(kind))

    async def _work_off(self, kind: TaskKind) -> None:
        while True:
            if not await unless_away(self._work_next(kind)):
                await until_poked(self.poked, at_most_seconds=POLL_SECONDS)

    async def _work_next(self, kind: TaskKind) -> bool:
        row = await self._database.fetchrow(CLAIM, self._owner, kind.name, self._ttl)
        if row is None:
            return False
        began = time.monotonic()
        with log_context(task=kind.name, key=row["key"]), span(kind.name, traceparent=row["traceparent"]):
            outcome = await self._outcome(kind, row)
        TASKS.labels(self._service, kind.name, outcome).inc()
        TASK_SECONDS.labels(self._service, kind.name).observe(time.monotonic() - began)
        return True

    async def _outcome(self, kind: TaskKind, row: Any) -> str:
        task = kind.payload.model_validate(row["payload"])
        try:
            result = await self._under_lease(kind, row, kind.work(task))
            await self._finish(kind, row, lambda unit: kind.done(task, result, unit))
        except LeaseLost:
            log.warning("task lease lost")
            return "lost"
        except Exception as error:
            log.warning("task failed", attempt=row["attempts"], exc_info=not isinstance(error, Rejected))
            return await self._after_failure(kind, task, row, error)
        return "done"

    async def _after_failure(self, kind: TaskKind, task: Task, row: Any, error: Exception) -> str:
        try:
            return await self._retry_or_fail(kind, task, row, error)
        except LeaseLost:
            log.warning("task was taken over, or its commit took place though its answer was lost")
            return "lost"

    async def _under_lease(self, kind: TaskKind, row: Any, work: Awaitable[Any]) -> Any:
        """Run the work while renewing the lease; cancel it when the lease is lost."""
        running = asyncio.ensure_future(work)
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=self._renew_seconds)
                if not running.done() and not await self._renew(kind, row):
                    raise LeaseLost
            return running.result()
        finally:
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def _renew(self, kind: TaskKind, row: Any) -> bool:
        return bool(
            await self._database.fetchval(RENEW, kind.name, row["key"], row["lease_epoch"], self._ttl)
        )

    async def _retry_or_fail(self, kind: TaskKind, task: Task, row: Any, error: Exception) -> str:
        is_last = isinstance(error, Rejected) or row["attempts"] >= kind.attempts
        if is_last:
            await self._finish(kind, row, lambda unit: kind.failed(task, error, unit))
            return "failed"
        pause = timedelta(seconds=min(MAX_BACKOFF_SECONDS, 0.5 * 2 ** row["attempts"]))
        text = f"{type(error).__name__}: {error}"
        await self._database.execute(RETRY, kind.name, row["key"], row["lease_epoch"], text, pause)
        return "retried"

    async def _finish(self, kind: TaskKind, row: Any, apply: Callable[[Unit], Awaitable[None]]) -> None:
        """What was worked out is not lost to a Postgres that is away for no longer than the lease holds."""
        deadline = time.monotonic() + self._ttl.total_seconds()
        while True:
            try:
                return await self._commit(kind, row, apply)
            except Exception as error:
                if not is_unavailable(error) or time.monotonic() > deadline:
                    raise
                log.warning("database is away", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(POLL_SECONDS)

    async def _commit(self, kind: TaskKind, row: Any, apply: Callable[[Unit], Awaitable[None]]) -> None:
        async with self._database.transaction() as conn:
            if not await conn.fetchval(FINISH, kind.name, row["key"], row["lease_epoch"]):
                raise LeaseLost
            await apply(Unit(conn, self._service, utc_now(), correlation_id=row["correlation_id"]))
        self._poke()
