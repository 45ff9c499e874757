"""Leased tasks: work of minutes, outside any transaction, that survives crashes and reports by events.

A worker claims a task with a lease, works, and applies the result only if the lease still holds. A task is done at
least once: its outside effects must be idempotent, its writes to the database happen once. Only a task's own errors
make it fail: an unavailable dependency is waited for, and the end of a process is no failure of its task.
"""

import asyncio
import errno
import socket
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from typing import Any

from shared.errors import Rejected, Unavailable
from shared.log import get_logger, log_context
from shared.messaging.kafka import KafkaFailed
from shared.messaging.lease import LeaseLost, under_lease
from shared.messaging.unit import Task, Unit, correlated
from shared.messaging.wake import WITHOUT_A_WAKE_SECONDS, wait_for_wake
from shared.postgres.database import (
    Database,
    NotConnected,
    Silent,
    false_if_unavailable,
    is_unavailable,
    lock_name,
)
from shared.retry import A_DAY, FOR_EVER, RetryPolicy, retry_until_available
from shared.telemetry.metrics import TASK_SECONDS, TASKS, TASKS_DUE, TASKS_SET_ASIDE, TASKS_WAITING
from shared.telemetry.tracing import span
from shared.text import storable

log = get_logger(__name__)

MAX_BACKOFF_SECONDS = 30.0
LONG_TRY = timedelta(minutes=10)
"""A try that lasted longer than this had its dependency meanwhile, so a new absence begins."""
NOW = timedelta(0)

# They go behind those that are due already: one of these tasks may have ended the process.
FREE_OWN = """
    UPDATE task SET lease_expires_at = NULL, not_before = greatest(not_before, clock_timestamp())
     WHERE lease_owner = $1"""

# A new process may be a new release, which reads what the one before it could not.
TAKE_BACK = """
    UPDATE task SET set_aside_at = NULL, failures = 0, not_before = clock_timestamp()
     WHERE kind = ANY($1) AND set_aside_at IS NOT NULL"""

IS_DUE = """
    kind = ANY($1) AND not_before <= clock_timestamp() AND set_aside_at IS NULL
    AND (lease_expires_at IS NULL OR lease_expires_at < clock_timestamp())"""
IS_ANY_DUE = f"SELECT EXISTS (SELECT FROM task WHERE {IS_DUE})"

# Of the tenants with a due task it takes the one with fewest running, then the one served longest ago, then the one
# with the oldest task. It reads as many rows as there are tenants, however many tasks each has.
CLAIM = """
    WITH RECURSIVE tenants AS (
        (SELECT tenant FROM task WHERE kind = $2 AND set_aside_at IS NULL ORDER BY tenant LIMIT 1)
        UNION ALL
        SELECT following.tenant FROM tenants CROSS JOIN LATERAL (
            SELECT tenant FROM task WHERE kind = $2 AND tenant > tenants.tenant AND set_aside_at IS NULL
             ORDER BY tenant LIMIT 1) AS following),
    busy AS (
        SELECT tenant, count(*) AS running FROM task
         WHERE kind = $2 AND lease_expires_at >= statement_timestamp() GROUP BY tenant),
    chosen AS (
        SELECT tenants.tenant, oldest.key
          FROM tenants CROSS JOIN LATERAL (
            SELECT key, not_before FROM task
             WHERE kind = $2 AND tenant = tenants.tenant AND not_before <= statement_timestamp()
               AND set_aside_at IS NULL
               AND (lease_expires_at IS NULL OR lease_expires_at < statement_timestamp())
             ORDER BY not_before LIMIT 1) AS oldest
          LEFT JOIN busy ON busy.tenant = tenants.tenant
          LEFT JOIN turn ON turn.kind = $2 AND turn.tenant = tenants.tenant
         ORDER BY coalesce(busy.running, 0), turn.served_at NULLS FIRST, oldest.not_before LIMIT 1),
    served AS (
        INSERT INTO turn (kind, tenant, served_at) SELECT $2, tenant, clock_timestamp() FROM chosen
        ON CONFLICT (kind, tenant) DO UPDATE SET served_at = excluded.served_at)
    UPDATE task SET lease_owner = $1, lease_token = lease_token + 1, lease_expires_at = clock_timestamp() + $3
      FROM chosen
     WHERE task.kind = $2 AND task.key = chosen.key
       AND (task.lease_expires_at IS NULL OR task.lease_expires_at < statement_timestamp())
    RETURNING task.key, payload, failures, lease_token, traceparent, correlation_id,
              clock_timestamp() - away_since AS away_for"""

RENEW = """
    UPDATE task SET lease_expires_at = clock_timestamp() + $4
     WHERE kind = $1 AND key = $2 AND lease_token = $3 RETURNING true"""

FINISH = "DELETE FROM task WHERE kind = $1 AND key = $2 AND lease_token = $3 RETURNING true"

RETRY = """
    UPDATE task SET lease_expires_at = NULL, lease_owner = NULL, last_error = $4, failures = failures + 1,
                    away_since = NULL, not_before = clock_timestamp() + $5
     WHERE kind = $1 AND key = $2 AND lease_token = $3"""

WAIT = """
    UPDATE task SET lease_expires_at = NULL, lease_owner = NULL, last_error = $4,
                    away_since = clock_timestamp() - $6::interval, not_before = clock_timestamp() + $5
     WHERE kind = $1 AND key = $2 AND lease_token = $3 RETURNING true"""

SET_ASIDE = """
    UPDATE task SET lease_expires_at = NULL, lease_owner = NULL, last_error = $4, set_aside_at = clock_timestamp()
     WHERE kind = $1 AND key = $2 AND lease_token = $3"""

COUNT = """
    SELECT kind, count(*) FILTER (WHERE away_since IS NOT NULL AND set_aside_at IS NULL) AS waiting,
           count(*) FILTER (WHERE away_since IS NULL AND set_aside_at IS NULL
                              AND not_before <= statement_timestamp()) AS due,
           count(set_aside_at) AS set_aside
      FROM task GROUP BY kind"""

_NOT_REACHED = (
    ConnectionRefusedError,
    ConnectionResetError,
    ConnectionAbortedError,
    socket.gaierror,
    Silent,
    NotConnected,
)
_NO_WAY = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ETIMEDOUT})


async def report_nothing(_task: Any, _waiting_for: str, _unit: Unit) -> None:
    pass


async def work_nothing(_task: Any) -> None:
    """Work of a task all of which is in the transaction that ends it."""


@dataclass(frozen=True)
class TaskKind:
    payload: type[Task]
    work: Callable[[Any], Awaitable[Any]]
    done: Callable[[Any, Any, Unit], Awaitable[None]]
    failed: Callable[[Any, Exception, Unit], Awaitable[None]]
    attempts: int
    """Number of failures by its own errors after which the task has failed."""
    concurrency: int
    waits: Callable[[Any, str, Unit], Awaitable[None]] = report_nothing
    """Function that is called once per absence, with the name of the dependency."""
    retry_policy: RetryPolicy = A_DAY

    @property
    def name(self) -> str:
        return self.payload.__name__


def unavailable_dependency(error: BaseException) -> str | None:
    """Return the name of the dependency that did not answer, or None if the error is the task's own."""
    if isinstance(error, BaseExceptionGroup):
        names = [unavailable_dependency(each) for each in error.exceptions]
        return None if None in names else names[0]
    if isinstance(error, Unavailable):
        return error.dependency
    if isinstance(error, KafkaFailed):
        return "Kafka"
    return "Postgres" if _is_of_postgres(error) else None


def _is_of_postgres(error: BaseException) -> bool:
    """Return whether Postgres is at fault; a missing file or a hanging child is an OSError too, but the task's."""
    if isinstance(error, OSError):
        return isinstance(error, _NOT_REACHED) or error.errno in _NO_WAY
    return is_unavailable(error)


class Tasks:
    def __init__(
        self,
        database: Database,
        *,
        service: str,
        owner: str,
        ttl: timedelta,
        renew: timedelta,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._service = service
        self._owner = owner
        self._ttl = ttl
        self._renew = renew
        self._wake = wake
        self._kinds: list[TaskKind] = []
        self._claiming: dict[str, _Claiming] = defaultdict(_Claiming)
        self.wake_event = asyncio.Event()

    def on(self, kind: TaskKind) -> None:
        self._kinds.append(kind)

    @property
    def kinds(self) -> list[str]:
        return [kind.name for kind in self._kinds]

    async def run(self) -> None:
        """Run one worker per kind and unit of concurrency, until cancelled."""
        await retry_until_available(self._take_back, is_away=_is_of_postgres, retry_policy=FOR_EVER)
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                for _ in range(kind.concurrency):
                    group.create_task(self._work_off(kind))

    async def _take_back(self) -> None:
        await self._database.execute(FREE_OWN, self._owner)
        await self._database.execute(TAKE_BACK, self.kinds)

    async def measure(self) -> None:
        counts = {row["kind"]: row for row in await self._database.fetch(COUNT)}
        for kind in self._kinds:
            row = counts.get(kind.name)
            TASKS_DUE.labels(self._service, kind.name).set(row["due"] if row else 0)
            TASKS_WAITING.labels(self._service, kind.name).set(row["waiting"] if row else 0)
            TASKS_SET_ASIDE.labels(self._service, kind.name).set(row["set_aside"] if row else 0)

    async def _work_off(self, kind: TaskKind) -> None:
        while True:
            if not await false_if_unavailable(self._work_next(kind)):
                await wait_for_wake(self.wake_event, at_most_seconds=WITHOUT_A_WAKE_SECONDS)

    async def _work_next(self, kind: TaskKind) -> bool:
        began = time.monotonic()
        row = await self._claim(kind)
        if row is None:
            return False
        claim = _Claim(kind, row, began)
        with (
            log_context(task=kind.name, key=row["key"]),
            span(kind.name, traceparent=row["traceparent"]),
            correlated(row["correlation_id"]),
        ):
            outcome = await self._outcome(claim)
        TASKS.labels(self._service, kind.name, outcome).inc()
        TASK_SECONDS.labels(self._service, kind.name).observe(time.monotonic() - claim.began)
        return True

    async def _claim(self, kind: TaskKind) -> Any:
        """Return the row of a claimed task, or None. Workers that wait for another's claim share the next one."""
        claiming = self._claiming[kind.name]
        claim = asyncio.get_running_loop().create_future()
        claiming.workers.append(claim)
        try:
            async with claiming.lock:
                if not claim.done():
                    await self._claim_for(kind, [each for each in claiming.workers if not each.done()])
        finally:
            claiming.workers.remove(claim)
        return claim.result()

    async def _claim_for(self, kind: TaskKind, workers: Sequence[asyncio.Future[Any]]) -> None:
        """Claim a task for each of these workers in one transaction, as far as there are any."""
        try:
            rows = await self._claim_rows(kind, at_most=len(workers))
        except Exception as error:
            for worker in workers:
                worker.set_exception(error)
            return
        for worker, row in zip_longest(workers, rows):
            worker.set_result(row)

    async def _claim_rows(self, kind: TaskKind, *, at_most: int) -> list[Any]:
        """Claim under a lock: concurrent claims would not see each other's task and would serve the same tenant."""
        rows: list[Any] = []
        if not await self._database.fetchval(IS_ANY_DUE, [kind.name]):
            return rows
        async with self._database.transaction() as conn:
            await lock_name(conn, f"{self._service} {kind.name}")
            while len(rows) < at_most and (
                row := await conn.fetchrow(CLAIM, self._owner, kind.name, self._ttl)
            ):
                rows.append(row)
        return rows

    async def _outcome(self, claim: "_Claim") -> str:
        """Handle every error of a task but a lost Postgres: it must neither end the process nor delay other tasks."""
        try:
            return await self._tried(claim)
        except LeaseLost:
            log.warning("task was cancelled or taken over, or it was committed though the answer was lost")
            return "lost"
        except Exception as error:
            if _is_of_postgres(error):
                raise
            log.exception("task set aside")
            await self._database.execute(SET_ASIDE, *claim.lease, _text(error))
            return "set_aside"

    async def _tried(self, claim: "_Claim") -> str:
        kind = claim.kind
        task = kind.payload.model_validate(claim.row["payload"])
        try:
            result = await self._under_lease(claim, kind.work(task))
            await self._finish(claim, lambda unit: kind.done(task, result, unit))
        except LeaseLost:
            raise
        except Exception as error:
            return await self._after_error(claim, task, error)
        return "done"

    async def _after_error(self, claim: "_Claim", task: Task, error: Exception) -> str:
        dependency = unavailable_dependency(error)
        if dependency is not None and claim.away_for < claim.kind.retry_policy.limit:
            await self._wait(claim, task, dependency, error)
            return "waiting"
        failures = claim.row["failures"] + 1
        is_own = not isinstance(error, Rejected)
        log.warning("task failed", failures=failures, exc_info=is_own)
        if dependency is None and is_own and failures < claim.kind.attempts:
            await self._retry(claim, error, failures)
            return "retried"
        await self._finish(claim, lambda unit: claim.kind.failed(task, error, unit))
        return "failed"

    async def _wait(self, claim: "_Claim", task: Task, dependency: str, error: Exception) -> None:
        away_for = claim.away_for
        pause = claim.kind.retry_policy.pause(away_for)
        log.warning("task waits", waiting_for=dependency, away_for=str(away_for), error=_text(error))
        async with self._database.transaction() as conn:
            if not await conn.fetchval(WAIT, *claim.lease, _text(error), pause, away_for):
                raise LeaseLost
            if away_for == NOW:
                await claim.kind.waits(task, f"{dependency}, which is away", self._unit(claim, conn))
        self._wake()

    async def _retry(self, claim: "_Claim", error: Exception, failures: int) -> None:
        pause = timedelta(seconds=min(MAX_BACKOFF_SECONDS, 0.5 * 2**failures))
        await self._database.execute(RETRY, *claim.lease, _text(error), pause)

    async def _under_lease(self, claim: "_Claim", work: Awaitable[Any]) -> Any:
        return await under_lease(
            work,
            lambda: self._database.fetchval(RENEW, *claim.lease, self._ttl),
            granted_at=claim.began,
            ttl=self._ttl,
            pause=self._renew,
        )

    async def _finish(self, claim: "_Claim", apply: Callable[[Unit], Awaitable[None]]) -> None:
        """Commit the result, retrying so that it survives an outage of Postgres that is shorter than the lease."""
        await retry_until_available(
            lambda: self._commit(claim, apply),
            is_away=_is_of_postgres,
            retry_policy=RetryPolicy(limit=self._ttl),
        )
        self._wake()

    async def _commit(self, claim: "_Claim", apply: Callable[[Unit], Awaitable[None]]) -> None:
        async with self._database.transaction() as conn:
            if not await conn.fetchval(FINISH, *claim.lease):
                raise LeaseLost
            await apply(self._unit(claim, conn))

    def _unit(self, claim: "_Claim", conn: Any) -> Unit:
        return Unit(conn, self._service, self._database.now(), correlation_id=claim.row["correlation_id"])


@dataclass
class _Claiming:
    """The workers of a kind that wait for a task of theirs to be claimed."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    workers: list[asyncio.Future[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Claim:
    """One try of a task, starting with the claim of its lease."""

    kind: TaskKind
    row: Any
    began: float
    """Time before the claim, on the monotonic clock in seconds."""

    @property
    def lease(self) -> tuple[str, str, int]:
        return self.kind.name, self.row["key"], self.row["lease_token"]

    @property
    def away_for(self) -> timedelta:
        """Return how long the present absence has lasted."""
        tried_for = timedelta(seconds=time.monotonic() - self.began)
        before = self.row["away_for"]
        return NOW if before is None or tried_for > LONG_TRY else before + tried_for


def _text(error: BaseException) -> str:
    return storable(f"{type(error).__name__}: {error}")
