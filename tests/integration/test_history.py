"""How an ended job went is deleted when it is old, a part at a time; what continues, and what is young, stays."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from deploy.local.stack import Stack
from schemas.topics import AGENT_REPORTS
from schemas.training import StepMetrics
from services.checkpoint_watcher import store as checkpoints
from services.gateway import readmodels, tables
from services.gateway import store as gateway
from services.provisioner import store as provisioner
from services.scheduler import store as scheduler
from services.tracker import store as tracker
from services.trainer_agent import store as trainer_agent
from shared.clock import utc_now
from shared.messaging import retention
from shared.messaging.retention import Pruning, prune
from shared.postgres.database import Database
from shared.postgres.migrate import migrate
from shared.settings import Timing
from tests.integration.scratch import empty_schema

pytestmark = pytest.mark.stack

KEPT = Timing().history_retention
OLD, NEW = KEPT + timedelta(minutes=1), KEPT - timedelta(minutes=1)
AGES = (("old", OLD), ("new", NEW))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 2)


@asynccontextmanager
async def schema_of(stack: Stack, service: str) -> AsyncIterator[Database]:
    async with empty_schema(stack) as dsn:
        await migrate(service, dsn)
        database = Database(dsn, application=f"{service}-history")
        await database.open()
        try:
            yield database
        finally:
            await database.close()


async def prune_all(database: Database, *queries: str, older_than: timedelta = KEPT) -> None:
    for query in queries:
        await prune(database, Pruning(query, older_than))


async def left(database: Database, table: str, column: str = "job_id") -> set[str]:
    rows = await database.fetch(f"SELECT DISTINCT {column}::text AS name FROM {table}")
    return {row["name"] for row in rows}


def a_step(number: int, tokens: int, *, time: datetime | None = None) -> StepMetrics:
    return StepMetrics(
        step=number,
        time=time or utc_now(),
        loss=1.0,
        learning_rate=1e-3,
        grad_norm=1.0,
        num_tokens=tokens,
        tokens_per_second=1.0,
        memory_bytes=1,
        epoch=0.1,
    )


async def fill_gateway(database: Database) -> None:
    async with database.transaction() as conn:
        for name, age in (*AGES, ("open", OLD)):
            at = utc_now() - age
            await tables.update_job(conn, name, "demo", created_at=at)
            await tables.save_steps(conn, name, 1, [a_step(number, 10) for number in (1, 2, 3, 4, 5)])
            await tables.save_steps(conn, name, 2, [a_step(number, 7) for number in (4, 5, 6)])
            await conn.execute(tables.INSERT_EVENT, name, "demo", name, "JobRunning", "info", "", {}, at)
            bundle = {"job_id": name, "attempt": 1, "step": 1, "manifest_sha256": "0" * 64, "tenant": "demo"}
            state = {"kind": "periodic", "metrics": {}, "state": "verified", "created_at": at}
            await tables.CHECKPOINT.save(conn, bundle | state)
            if name != "open":
                await tables.end_job(conn, name, at=at)
        for name, age in AGES:
            at = utc_now() - age
            await conn.execute(tables.ADD_REFUSAL, "demo", name, "CancelJob", name, "late", "", None, at)
            await conn.execute(tables.SAVE_OUTCOME, name, "JobSubmitted", {})
            await conn.execute("UPDATE outcome SET saved_at = $2 WHERE causation_id = $1", name, at)
            await conn.execute(gateway.CLAIM_KEY, "demo", name, "")
            await conn.execute("UPDATE idempotency SET created_at = $2 WHERE key = $1", name, at)


async def test_a_job_outlives_its_history_at_the_gateway(stack: Stack):
    async with schema_of(stack, "gateway") as database:
        await fill_gateway(database)
        await prune_all(database, *gateway.PRUNED)
        for table in ("step", "job_event", "checkpoint"):
            assert await left(database, table) == {"new", "open"}, table
        assert await left(database, "ended_job") == {"new"}
        for table, column in (("refusal", "command_id"), ("outcome", "causation_id"), ("idempotency", "key")):
            assert await left(database, table, column) == {"new"}, table
        for name in ("old", "new"):
            row = await readmodels.find_job(database, name, "demo")
            assert row is not None
            assert (row.last_step, row.trained_tokens) == (6, 3 * 10 + 3 * 7)


async def test_what_is_left_of_an_old_job_is_deleted_before_the_row_that_names_it(stack: Stack):
    async with schema_of(stack, "gateway") as database:
        await fill_gateway(database)
        await prune_all(database, gateway.PRUNE_ENDED)
        assert await left(database, "ended_job") == {"old", "new"}


async def test_old_steps_leave_the_tracker(stack: Stack):
    async with schema_of(stack, "tracker") as database:
        async with database.transaction() as conn:
            for name, age in AGES:
                steps = [a_step(number, 1, time=utc_now() - age) for number in range(1, 6)]
                await tracker.save_steps(conn, name, "demo", 1, steps)
        await prune_all(database, tracker.PRUNE_STEPS)
        assert await left(database, "step") == {"new"}


JOB = """
    INSERT INTO job (id, tenant, state, spec, base_sha, dataset_id, submitted_at, verified, corrupt, turned_away,
                     requeues, preempted_at, evaluation)
    VALUES ($1, 'demo', $2, '{"tier": "standard", "resources": {}}', '', '', now(), '[]', '[]', '{}', '{}', '[]', '{}')"""
ATTEMPT = """
    INSERT INTO attempt (job_id, number, pool, capacity_type, nodes, devices_per_node, scheduled_at, start_deadline,
                         facts, freed_at)
    SELECT $1, number, 'pool', 'spot', 1, 1, $2, $2, '{}', $2 FROM generate_series(1, 5) AS number"""


async def test_attempts_of_jobs_that_are_over_leave_the_scheduler(stack: Stack):
    async with schema_of(stack, "scheduler") as database:
        for name, age, state in (("old", OLD, "failed"), ("new", NEW, "failed"), ("paused", OLD, "paused")):
            await database.execute(JOB, name, state)
            await database.execute(ATTEMPT, name, utc_now() - age)
        await prune_all(database, scheduler.PRUNE_ATTEMPTS)
        assert await left(database, "attempt") == {"new", "paused"}


PROVISIONED = """
    INSERT INTO attempt (job_id, number, name, tenant, state, pool, capacity_type, devices_per_node, grace_seconds,
                         gone_at)
    SELECT $1, number, $1 || number, 'demo', 'released', 'pool', 'spot', 1, 1, $2
      FROM generate_series(1, 5) AS number"""
NODES = """
    INSERT INTO node (node_id, job_id, number, index, pool, price_per_hour, allocated_at)
    SELECT $1 || number, $1, number, 0, 'pool', 1, now() FROM generate_series(1, 5) AS number"""


async def test_attempts_that_hold_nothing_leave_the_provisioner(stack: Stack):
    async with schema_of(stack, "provisioner") as database:
        await database.execute(
            "INSERT INTO pool (name, capacity_type, nodes, devices_per_node, price_per_device_hour, file_nodes)"
            " VALUES ('pool', 'spot', 1, 1, 1, 1)"
        )
        for name, gone_at in (*((name, utc_now() - age) for name, age in AGES), ("held", None)):
            await database.execute(PROVISIONED, name, gone_at)
            await database.execute(NODES, name)
        await prune_all(database, provisioner.PRUNE_NODES, provisioner.PRUNE_ATTEMPTS)
        assert await left(database, "node") == await left(database, "attempt") == {"new", "held"}


CLOSED = """
    INSERT INTO attempt (job_id, number, tenant, state, closed_at)
    SELECT $1, number, 'demo', 'closed', $2 FROM generate_series(1, 5) AS number"""
RUNNERS = """
    INSERT INTO runner (job_id, number, node_index, node_id, host, port, report_id, seen_at)
    SELECT $1, number, 0, '', '', 1, '', now() FROM generate_series(1, 5) AS number"""


async def test_closed_attempts_and_claims_that_nobody_waits_for_leave_the_trainer_agent(stack: Stack):
    kept = timedelta(days=AGENT_REPORTS.retention_days)
    async with schema_of(stack, "trainer_agent") as database:
        for name, closed_at in (*((name, utc_now() - age) for name, age in AGES), ("open", None)):
            await database.execute(CLOSED, name, closed_at)
            await database.execute(RUNNERS, name)
        for name, age in AGES:
            dropped = (name, 1, name, "StepReached", "", {}, utc_now() - age)
            await database.execute(trainer_agent.RECORD_DROPPED, *dropped)
            kept_at = utc_now() - age + KEPT - kept
            claim = (name, 1, name, "StepReached", {}, kept_at, b"signed", b"signature")
            await database.execute(trainer_agent.KEEP_CLAIM, *claim)
        queries = (trainer_agent.PRUNE_DROPPED, trainer_agent.PRUNE_RUNNERS, trainer_agent.PRUNE_ATTEMPTS)
        await prune_all(database, *queries)
        assert await left(database, "runner") == await left(database, "attempt") == {"new", "open"}
        assert await left(database, "dropped_claim") == {"new"}
        assert await left(database, "kept_claim") == {"old", "new"}
        await prune_all(database, trainer_agent.PRUNE_KEPT, older_than=kept)
        assert await left(database, "kept_claim") == {"new"}


async def test_expired_bundles_leave_the_checkpoint_watcher(stack: Stack):
    async with schema_of(stack, "checkpoint_watcher") as database:
        for name, age, state in (
            ("old", OLD, "expired"),
            ("new", NEW, "expired"),
            ("whole", OLD, "verified"),
        ):
            for step in range(5):
                await database.execute(
                    "INSERT INTO checkpoint (job_id, tenant, attempt, step, manifest_sha256, kind, state, written_at)"
                    " VALUES ($1, 'demo', 1, $2, '', '', $3, $4)",
                    *(name, step, state, utc_now() - age),
                )
        await prune_all(database, checkpoints.PRUNE_CHECKPOINTS)
        assert await left(database, "checkpoint") == {"new", "whole"}
