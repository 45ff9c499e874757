"""Tenants' tasks are begun in turn: however many one has waiting, another's first is next."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from shared.messaging.retention import prune_kernel
from shared.messaging.tasks import CLAIM, TaskKind, Tasks
from shared.messaging.unit import Task, Unit
from shared.postgres.database import Database
from shared.settings import Timing

pytestmark = pytest.mark.stack

INSERT_MANY = """
    INSERT INTO task (kind, key, tenant, payload)
    SELECT 'Errand', $1 || number, $1, jsonb_build_object('tenant', $1::text, 'number', number)
      FROM generate_series(1, $2::int) AS number"""
LEASE = timedelta(seconds=15)


class Errand(Task, frozen=True):
    number: int = 0

    @property
    def key(self) -> str:
        return f"{self.tenant}{self.number}"


class Errands:
    """Whose turn it was, in the order in which the tasks began; each ends when the test lets it."""

    def __init__(self) -> None:
        self.tenants: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.begun = asyncio.Semaphore(0)

    async def _work(self, errand: Errand) -> None:
        self.tenants.append(errand.tenant)
        self.begun.release()
        await self.may_end.wait()

    @property
    def kind(self) -> TaskKind:
        return TaskKind(Errand, self._work, _nothing, _nothing, attempts=1, concurrency=1)


async def _nothing(*_: object) -> None:
    pass


@pytest.fixture(autouse=True)
async def no_errands(db: asyncpg.Connection) -> AsyncIterator[None]:
    yield
    await db.execute("DELETE FROM task WHERE kind = 'Errand'")
    await db.execute("DELETE FROM turn WHERE kind = 'Errand'")


def a_process(database: Database) -> Tasks:
    owner = f"tracker-{uuid4().hex}"
    renew = timedelta(seconds=5)
    return Tasks(database, service="tracker", owner=owner, ttl=LEASE, renew=renew, wake=lambda: None)


async def start(database: Database, *errands: Errand) -> None:
    async with database.transaction() as conn:
        unit = Unit(conn, "tracker", datetime.now(UTC))
        for errand in errands:
            await unit.start_task(errand)


async def work_off(processes: Sequence[Tasks], kind: TaskKind, *, count: int) -> None:
    for number in range(count):
        assert await processes[number % len(processes)]._work_next(kind)


@pytest.mark.parametrize("num_processes", [1, 2])
async def test_anothers_first_task_is_next_whatever_number_one_tenant_has(database, db, num_processes: int):
    await db.execute(INSERT_MANY, "acme", 1000)
    errands, processes = Errands(), [a_process(database) for _ in range(num_processes)]
    await work_off(processes, errands.kind, count=2)
    await start(database, Errand(tenant="beta", number=1), Errand(tenant="beta", number=2))
    await work_off(processes, errands.kind, count=5)
    assert errands.tenants == ["acme"] * 2 + ["beta", "acme", "beta", "acme", "acme"]


async def test_workers_that_wait_for_a_claim_share_the_next_one(database, db):
    await db.execute(INSERT_MANY, "acme", 3)
    await db.execute(INSERT_MANY, "beta", 1)
    errands, process = Errands(), a_process(database)
    errands.may_end.clear()
    running = [asyncio.create_task(process._work_next(errands.kind)) for _ in range(6)]
    for _ in range(4):
        await errands.begun.acquire()
    assert sorted(errands.tenants[:2]) == ["acme", "beta"], "in one transaction too they take turns"
    claims = await db.fetch("SELECT DISTINCT xmin::text FROM task WHERE kind = 'Errand'")
    assert len(claims) == 2, "one of the worker that came first, one of those that waited for it"
    errands.may_end.set()
    assert sorted(await asyncio.gather(*running)) == [False, False, True, True, True, True]


async def test_who_has_fewest_running_is_before_who_was_served_longest_ago(database, db):
    await db.execute(INSERT_MANY, "acme", 1000)
    errands, process = Errands(), a_process(database)
    await db.execute(INSERT_MANY, "beta", 3)
    await work_off([process], errands.kind, count=1)
    errands.may_end.clear()
    running = [asyncio.create_task(process._work_next(errands.kind)) for _ in range(4)]
    for _ in range(5):
        await errands.begun.acquire()
    assert errands.tenants == ["acme", "beta", "acme", "beta", "acme"]
    await start(database, Errand(tenant="late", number=1))
    late = asyncio.create_task(process._work_next(errands.kind))
    await errands.begun.acquire()
    assert errands.tenants[-1] == "late"
    errands.may_end.set()
    await asyncio.gather(*running, late)


async def test_who_has_none_running_is_before_who_has_one_though_served_later(database, db):
    await db.execute(INSERT_MANY, "acme", 1000)
    errands, process = Errands(), a_process(database)
    held = errands.may_end
    held.clear()
    first = asyncio.create_task(process._work_next(errands.kind))
    await errands.begun.acquire()
    errands.may_end = asyncio.Event()
    errands.may_end.set()
    await db.execute(INSERT_MANY, "beta", 3)
    await work_off([process], errands.kind, count=2)
    assert errands.tenants == ["acme", "beta", "beta"]
    held.set()
    await first


async def test_workers_that_look_at_once_serve_different_tenants(database, db):
    tenants = [f"tenant-{number}" for number in range(8)]
    for tenant in tenants:
        await db.execute(INSERT_MANY, tenant, 20)
    errands, processes = Errands(), [a_process(database) for _ in range(2)]
    for _ in range(10):
        errands.tenants.clear()
        errands.may_end.clear()
        running = [asyncio.create_task(processes[n % 2]._work_next(errands.kind)) for n in range(8)]
        for _ in range(8):
            await errands.begun.acquire()
        assert sorted(errands.tenants) == tenants
        errands.may_end.set()
        await asyncio.gather(*running)


async def test_a_claim_reads_as_many_rows_as_there_are_tenants(database, db):
    await db.execute(INSERT_MANY, "acme", 3000)
    await db.execute(
        "UPDATE task SET not_before = clock_timestamp() + interval '1 hour' WHERE kind = 'Errand'"
    )
    for number in range(10):
        await db.execute(INSERT_MANY, f"tenant-{number}", 100)
    await db.execute("ANALYZE task")
    async with database.transaction() as conn:
        [plan] = json.loads(await conn.fetchval(explained(CLAIM)))
        assert await conn.fetchval("SELECT count(*) FROM task WHERE lease_owner = 'planner'") == 1
        await conn.execute(
            "UPDATE task SET lease_owner = NULL, lease_expires_at = NULL WHERE lease_owner = 'planner'"
        )
    assert sum(rows_read(plan["Plan"])) < 100


def explained(statement: str) -> str:
    for name, value in (("$1", "'planner'"), ("$2", "'Errand'"), ("$3", "interval '15 s'")):
        statement = statement.replace(name, value)
    return f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"


def rows_read(plan: dict[str, Any]) -> Iterator[float]:
    """Of tables and their indexes."""
    if "Relation Name" in plan or "Index Name" in plan:
        yield (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    for part in plan.get("Plans", ()):
        yield from rows_read(part)


async def test_a_task_takes_the_turn_of_whom_it_is_asked_for_again(database, db):
    await start(database, Errand(tenant="acme", number=1))
    await db.execute("UPDATE task SET set_aside_at = now(), tenant = '' WHERE key = 'acme1'")
    await start(database, Errand(tenant="acme", number=1))
    assert await db.fetchval("SELECT tenant FROM task WHERE key = 'acme1'") == "acme"


async def test_who_was_not_served_for_long_is_forgotten(database, db):
    insert = "INSERT INTO turn VALUES ('Errand', $1, clock_timestamp() - $2::interval)"
    await db.execute(insert, "old", timedelta(days=1, minutes=1))
    await db.execute(insert, "new", timedelta(hours=23))
    await prune_kernel(database, Timing())
    assert await db.fetchval("SELECT array_agg(tenant) FROM turn WHERE kind = 'Errand'") == ["new"]
