"""Waits until nothing of a stack is under way any more, then holds everything against the invariants."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import asyncpg

from deploy.local.stack import Stack
from ops.connection import find_connection
from ops.doctor import examination
from ops.doctor.finding import Finding
from ops.doctor.history import History, Limits
from ops.doctor.objects import Say
from schemas.lifecycle import TERMINAL
from schemas.topics import LISTENS, READERS, SERVICES
from shared.processes.identity import Identity, marked

POLL_SECONDS = 1.0
LIMITS = Limits(grace=timedelta(seconds=10), stalled_after=timedelta(minutes=2))
RUNNERS = "services.trainer_agent.runner"
WORKERS = tuple(service for service in SERVICES if service not in READERS)

UNDER_WAY = """
    SELECT 'rows not published' AS what, count(*) FROM {schema}.unpublished
     UNION ALL SELECT 'messages waiting', count(*) FROM {schema}.waiting
     UNION ALL SELECT 'tasks', count(*) FROM {schema}.task
     UNION ALL SELECT 'timers due', count(*) FROM {schema}.timer WHERE fires_at < clock_timestamp()"""
UNREAD = """
    SELECT count(*) FROM {writer}.sequence s
      LEFT JOIN {reader}.position p ON p.topic = s.topic AND p.aggregate_id = s.aggregate_id
     WHERE s.topic = $1 AND coalesce(p.sequence, 0) < s.last"""
UNHEARD = """
    SELECT count(*) FROM {writer}.outbox o WHERE o.topic = $1 AND NOT EXISTS (
           SELECT FROM {reader}.inbox i WHERE i.topic = o.topic AND i.event_id = o.event_id)"""
OPEN_JOBS = "SELECT state, count(*) FROM scheduler.operator_job GROUP BY state"
UNANSWERED = """
    SELECT count(*) FROM (
        SELECT DISTINCT ON (tenant, slot) outcome FROM registry.operator_generation ORDER BY tenant, slot, number DESC
    ) AS newest WHERE outcome = 'pending'"""
PARKED = "SELECT id, topic, reason, detail FROM {schema}.parked WHERE state = 'parked'"


class Violated(AssertionError):
    """What is wrong with the stack, one line each."""


@dataclass(frozen=True)
class Quiet:
    """A stack on which nothing is under way."""

    after_seconds: float
    history: History


async def hold(stack: Stack, *, within_seconds: float, say: Say = lambda line: None) -> Quiet:
    """Raises Violated: it did not come to rest in time, or an invariant does not hold."""
    async with asyncpg.create_pool(stack.postgres_dsn("operator"), min_size=0, max_size=2) as pool:
        took = await _until_quiet(pool, within_seconds, say)
        parked = [line async for line in _parked(pool)]
    history, findings = await examine(stack, say)
    violations = [finding.sentence for finding in findings] + parked + list(map(str, leftovers(stack)))
    if violations:
        raise Violated(f"{len(violations)} violations:\n" + "\n".join(violations))
    return Quiet(took, history)


async def examine(
    stack: Stack, say: Say = lambda line: None, *, limits: Limits = LIMITS
) -> tuple[History, list[Finding]]:
    """Every byte in S3 is read."""
    return await examination.examine(find_connection(stack.operator_env()), limits, deep=True, say=say)


def leftovers(stack: Stack) -> Iterator[str]:
    """I11 at the engine: runners of attempts that are all over."""
    for process in with_word(stack, RUNNERS):
        yield f"process {process.pid} is a node runner, though no attempt is open"


def with_word(stack: Stack, word: str) -> Iterator[Identity]:
    """The stack's processes with `word` in their command line."""
    for process in marked(stack.state.mark):
        try:
            line = Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if word in line:
            yield process


async def _until_quiet(pool: asyncpg.Pool, within_seconds: float, say: Say) -> float:
    began, reported = time.monotonic(), ""
    while left := await _under_way(pool):
        if reported != (reported := "; ".join(left)):
            say(f"still under way: {reported}")
        if time.monotonic() - began > within_seconds:
            raise Violated(f"not at rest after {within_seconds:g} s: {'; '.join(left)}")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began


async def _under_way(pool: asyncpg.Pool) -> list[str]:
    """Cheap questions first; the next is asked once the one before finds nothing."""
    questions: tuple[Callable[[asyncpg.Pool], Awaitable[list[str]]], ...] = (_jobs, _kernels, _unread, _slots)
    for ask in questions:
        if left := await ask(pool):
            return left
    return []


async def _jobs(pool: asyncpg.Pool) -> list[str]:
    rows = await pool.fetch(OPEN_JOBS)
    return [f"{row['count']} jobs {row['state']}" for row in rows if row["state"] not in TERMINAL]


async def _kernels(pool: asyncpg.Pool) -> list[str]:
    remaining = []
    for schema in WORKERS:
        rows = await pool.fetch(UNDER_WAY.format(schema=schema))
        remaining += [f"{schema}: {row['count']} {row['what']}" for row in rows if row["count"]]
    return remaining


async def _unread(pool: asyncpg.Pool) -> list[str]:
    remaining = []
    for reader, topics in LISTENS.items():
        for topic in topics:
            query = UNREAD if topic.is_event_stream else UNHEARD
            for writer in set(topic.writers) & set(WORKERS):
                count = await pool.fetchval(query.format(writer=writer, reader=reader), topic.name)
                if count:
                    remaining.append(f"{reader} has not come to {count} of {topic.name}")
    return remaining


async def _slots(pool: asyncpg.Pool) -> list[str]:
    count = await pool.fetchval(UNANSWERED)
    return [f"{count} slots wait for serving"] if count else []


async def _parked(pool: asyncpg.Pool):
    for schema in WORKERS:
        for row in await pool.fetch(PARKED.format(schema=schema)):
            yield f"{schema} parked message {row['id']} of {row['topic']}: {row['reason']}: {row['detail']}"
