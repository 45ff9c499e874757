"""A dataset or a base model with many jobs: they follow in batches, no transaction grows with them, none is forgotten."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.base import Message
from schemas.envelope import Envelope
from schemas.job import CancelJob
from schemas.lifecycle import JobState
from services.scheduler import queue_store, shared_rows, store
from services.scheduler.decide.decision import Policy
from services.scheduler.decide.queue import GRANTS_OF_A_ROUND
from services.scheduler.handlers import JOBS_TOGETHER, FollowBase, FollowDataset, Handlers
from services.scheduler.model import Job
from shared.clock import utc_now
from shared.errors import Refused
from shared.messaging.delivery import Delivery, topic_named
from shared.messaging.unit import Shared, Unit
from shared.postgres.database import Connection, register_json
from shared.postgres.migrate import migrate
from shared.record import Record
from tests.builders import a_dataset, a_job, a_job_spec, a_pool
from tests.integration import scheduler_rows
from tests.integration.scratch import empty_schema
from tests.unit.scheduler import incoming
from tests.unit.scheduler.test_dataset import DELETED, READY

pytestmark = pytest.mark.stack

JOBS = 3 * JOBS_TOGETHER + 7
STATEMENTS = 20 * JOBS_TOGETHER
"""Of a transaction, whatever the number of jobs."""
MODEL = "ftjob-model"
COPY = """
    INSERT INTO job (id, tenant, state, spec, base_sha, dataset_id, submitted_at, plan, config_hash, verified,
                     corrupt, queued_at, turned_away, requeues, preempted_at, evaluation)
    SELECT $2::text || '-' || number, tenant, state, spec, base_sha, dataset_id, submitted_at, plan, config_hash,
           verified, corrupt, queued_at, turned_away, requeues, preempted_at, evaluation
      FROM job, generate_series(1, $3::int) AS number WHERE id = $1"""
END_NEXT = """
    DELETE FROM task WHERE (kind, key) = (SELECT kind, key FROM task ORDER BY kind, key LIMIT 1)
    RETURNING kind, payload"""


@dataclass
class Scheduler:
    """Handlers on a schema of their own; each transaction says how many statements it had."""

    conn: asyncpg.Connection
    handlers: Handlers = field(default_factory=lambda: Handlers(Policy()))
    statements: list[int] = field(default_factory=list)

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[Unit]:
        asked: list[Any] = []
        with self.conn.query_logger(asked.append):
            async with self.conn.transaction():
                yield Unit(self.conn, "scheduler", utc_now(), an_envelope())
        self.statements.append(len(asked))

    async def hear(self, handle: Callable[[Any, Unit], Awaitable[None]], message: Message) -> None:
        async with self.unit() as unit:
            await handle(message, unit)

    async def follow_next(self) -> bool:
        """As the kernel ends a task: its row goes in the same transaction."""
        async with self.unit() as unit:
            row = await self.conn.fetchrow(END_NEXT)
            if row is None:
                return False
            if row["kind"] == "FollowBase":
                await self.handlers.follow_base(FollowBase.model_validate(row["payload"]), None, unit)
            else:
                await self.handlers.follow_dataset(FollowDataset.model_validate(row["payload"]), None, unit)
        return True

    async def follow_all(self) -> int:
        batches = 0
        while await self.follow_next():
            batches += 1
        return batches

    async def states(self) -> Counter[str]:
        rows = await self.conn.fetch("SELECT state, count(*) AS jobs FROM job GROUP BY state")
        return Counter({row["state"]: row["jobs"] for row in rows})

    async def emitted(self, message_type: str) -> list[str]:
        rows = await self.conn.fetch(
            "SELECT aggregate_id FROM outbox WHERE type = $1 ORDER BY aggregate_id", message_type
        )
        return [row["aggregate_id"] for row in rows]


@pytest.fixture
async def scheduler(stack: Stack) -> AsyncIterator[Scheduler]:
    async with empty_schema(stack) as dsn:
        await migrate("scheduler", dsn)
        conn = await asyncpg.connect(dsn)
        await register_json(conn)
        yield Scheduler(conn)
        await conn.close()


def an_envelope() -> Envelope:
    return Envelope(id=uuid4().hex, type="any", version=1, source="/retune/any", time=utc_now(), key="any")


async def add(
    conn: asyncpg.Connection, state: JobState, *, count: int, like: str = MODEL, **spec: Any
) -> None:
    """`count` jobs in that state, on one dataset that nothing was heard of."""
    job = a_job(state, id=like, spec=a_job_spec(**spec), dataset=a_dataset())
    await store.add_job(conn, replace(job, state=JobState.VALIDATING))
    if state is not JobState.VALIDATING:
        await scheduler_rows.save(conn, job)
    await conn.execute(COPY, like, like, count - 1)


async def test_every_job_on_a_dataset_is_queued_once_it_is_ready(scheduler: Scheduler):
    await add(scheduler.conn, JobState.VALIDATING, count=JOBS)
    await scheduler.hear(scheduler.handlers.dataset, READY)
    assert await scheduler.states() == {"queued": JOBS_TOGETHER, "validating": JOBS - JOBS_TOGETHER}
    assert await scheduler.follow_all() == JOBS // JOBS_TOGETHER
    assert await scheduler.states() == {"queued": JOBS}
    emitted = await scheduler.emitted("JobQueued")
    assert len(emitted) == len(set(emitted)) == JOBS
    assert max(scheduler.statements) < STATEMENTS


async def test_what_is_known_of_the_dataset_by_then_decides(scheduler: Scheduler):
    await add(scheduler.conn, JobState.VALIDATING, count=JOBS)
    await scheduler.hear(scheduler.handlers.dataset, READY)
    await scheduler.hear(scheduler.handlers.dataset, DELETED)
    await scheduler.follow_all()
    assert await scheduler.states() == {"failed": JOBS}
    assert len(await scheduler.emitted("JobQueued")) == JOBS_TOGETHER
    failed = await scheduler.emitted("JobFailed")
    assert len(failed) == len(set(failed)) == JOBS


async def test_no_job_begins_on_files_that_were_replaced(scheduler: Scheduler):
    await add(scheduler.conn, JobState.QUEUED, count=JOBS)
    await scheduler.hear(scheduler.handlers.adapters_stale, incoming.stale())
    assert await scheduler.states() == {"failed": JOBS_TOGETHER, "queued": JOBS - JOBS_TOGETHER}
    assert await scheduler.follow_all() == JOBS // JOBS_TOGETHER
    assert await scheduler.states() == {"failed": JOBS}
    assert max(scheduler.statements) < STATEMENTS


async def test_a_job_that_ended_meanwhile_is_passed_over(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
):
    await add(scheduler.conn, JobState.SUCCEEDED, count=1)
    await scheduler.hear(scheduler.handlers.dataset, READY)

    async def just_ended(conn: Connection, *_: Any, **__: Any) -> list[Job]:
        return [await store.find_job(conn, MODEL)]

    monkeypatch.setattr(store, "jobs_on_dataset", just_ended)
    task = FollowDataset(event_id="any", dataset_id=READY.dataset_id)
    async with scheduler.conn.transaction():
        await scheduler.handlers.follow_dataset(task, None, Unit(scheduler.conn, "scheduler", utc_now()))
    assert await scheduler.states() == {"succeeded": 1}


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_no_job_begins_before_its_batch(scheduler: Scheduler, is_deleted: bool):
    await add(scheduler.conn, JobState.QUEUED, count=JOBS)
    async with scheduler.unit() as unit:
        await store.save_dataset(unit.conn, a_dataset())
        await queue_store.save_pool(unit.conn, a_pool(nodes=JOBS))
    if is_deleted:
        await scheduler.hear(scheduler.handlers.dataset, DELETED)
    else:
        await scheduler.hear(scheduler.handlers.adapters_stale, incoming.stale())
    async with scheduler.unit() as unit:
        await scheduler.handlers.start_waiting(unit)
    states = await scheduler.states()
    assert states == {"failed": JOBS_TOGETHER + GRANTS_OF_A_ROUND, "queued": states["queued"]}


async def test_who_comes_behind_when_the_files_are_back_is_let_be(scheduler: Scheduler):
    await add(scheduler.conn, JobState.PAUSED, count=JOBS)
    await scheduler.hear(scheduler.handlers.adapters_stale, incoming.stale())
    await scheduler.hear(scheduler.handlers.base_model_registered, incoming.base_registered())
    await scheduler.follow_all()
    stale = "SELECT count(*) FROM job WHERE evaluation -> 'denial' ->> 'stale_base' = 'true'"
    assert await scheduler.conn.fetchval(stale) == 0


async def test_jobs_of_another_base_with_these_files_continue(scheduler: Scheduler):
    await add(scheduler.conn, JobState.QUEUED, count=2)
    await add(scheduler.conn, JobState.QUEUED, like="ftjob-other", count=3, base_model="other")
    await scheduler.hear(scheduler.handlers.adapters_stale, incoming.stale())
    await scheduler.follow_all()
    assert await scheduler.states() == {"failed": 2, "queued": 3}


async def test_messages_that_share_a_transaction_read_their_jobs_at_once(scheduler: Scheduler):
    await add(scheduler.conn, JobState.QUEUED, count=JOBS_TOGETHER)
    names = sorted(row["id"] for row in await scheduler.conn.fetch("SELECT id FROM job"))
    commands = [CancelJob(job_id=name, tenant=a_job().tenant) for name in names]
    async with scheduler.unit() as unit:
        unit.shared = shared = Shared([a_delivery(command) for command in commands])
        for command in commands:
            await scheduler.handlers.cancel(command, unit)
        with pytest.raises(Refused, match="is cancelled"):
            await scheduler.handlers.cancel(commands[0], unit)
        await shared.end(scheduler.conn)
    assert await scheduler.states() == {"cancelled": JOBS_TOGETHER}
    assert await scheduler.emitted("JobCancelled") == names
    assert scheduler.statements[-1] < 1.5 * JOBS_TOGETHER


async def test_a_dataset_that_shares_a_transaction_with_its_jobs_is_read_again(scheduler: Scheduler):
    await add(scheduler.conn, JobState.VALIDATING, count=1)
    ready = READY.model_copy(update={"dataset_id": a_job().dataset_id})
    cancel = CancelJob(job_id=MODEL, tenant=a_job().tenant)
    async with scheduler.unit() as unit:
        unit.shared = shared = Shared([a_delivery(cancel), a_delivery(ready)])
        await shared_rows.get_job(unit, MODEL)
        await scheduler.handlers.dataset(ready, unit)
        job = await shared_rows.get_job(unit, MODEL)
        await shared.end(scheduler.conn)
    assert job.dataset is not None
    assert job.state is not JobState.VALIDATING


def a_delivery(message: Message) -> Delivery:
    return Delivery(Record("any", 0, 0, None, (), None), topic_named("job.commands"), an_envelope(), message)
