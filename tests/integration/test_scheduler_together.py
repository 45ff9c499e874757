"""What messages of one transaction write at its end is what they would have written one by one."""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.base import Message
from schemas.deployment import DeploymentReady, SlotState
from schemas.job import JobScheduled, SubmitJob
from schemas.node import PoolCapacityChanged
from services.scheduler import shared_rows
from services.scheduler.decide.decision import Policy
from services.scheduler.handlers import register
from shared.errors import RetuneError
from shared.messaging.unit import Shared, Unit
from shared.postgres.database import register_json
from shared.postgres.migrate import migrate
from shared.service import Service
from tests.builders import NOON, TENANT, a_dataset, a_job_spec
from tests.chaos.scale import scaled, seed
from tests.integration.scratch import empty_schema
from tests.integration.test_scheduler_batches import a_delivery, an_envelope
from tests.unit.scheduler import incoming
from tests.unit.scheduler.test_dataset import DELETED, READY

pytestmark = pytest.mark.stack

HISTORIES = scaled(6, 60, 600)
MESSAGES = 100
JOBS = ("ftjob-1", "ftjob-2", "ftjob-3")
ROWS = {
    "job": "SELECT to_jsonb(job) - 'revision' - 'submitted_at' FROM job ORDER BY id",
    "attempt": "SELECT to_jsonb(attempt) FROM attempt ORDER BY job_id, number",
    "ignored": "SELECT job_id, type, reason, at FROM ignored ORDER BY job_id, type, reason, at",
    "deployment": "SELECT to_jsonb(deployment) FROM deployment ORDER BY tenant, slot",
    "timer": "SELECT type, payload, fires_at FROM timer ORDER BY type, payload, fires_at",
    "outbox": "SELECT topic, aggregate_id, sequence, type, value FROM outbox ORDER BY topic, aggregate_id, sequence",
}


def a_ready() -> DeploymentReady:
    approved = incoming.approved()
    slot = {name: getattr(approved, name) for name in SlotState.model_fields if hasattr(approved, name)}
    return DeploymentReady(**slot, pool="any", served_name="any", replicas=())


OFTEN: Sequence[Callable[[], Message]] = (
    incoming.nodes_provisioned, incoming.started, incoming.written, incoming.verified, incoming.completed,
    incoming.released, incoming.eval_passed, incoming.registered, incoming.promoted, incoming.approved,
    a_ready,
)  # fmt: skip
SELDOM: Sequence[Callable[[], Message]] = (
    incoming.cancel, incoming.pause, incoming.resume, incoming.alert, incoming.nodes_queued, incoming.lost,
    incoming.provisioning_failed, incoming.preempted, incoming.stopped, incoming.failed, incoming.corrupt,
    incoming.eval_failed, incoming.eval_inconclusive, incoming.promotion_refused, incoming.stale,
    incoming.base_registered, lambda: READY, lambda: DELETED,
    lambda: incoming.retry(new_job_id=""),
)  # fmt: skip


@dataclass
class Scheduler:
    """Handlers by message type on a schema of their own."""

    conn: asyncpg.Connection
    handlers: dict[type, Callable[[Any, Unit], Awaitable[None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        register(cast("Service", self), Policy())

    def on(self, message: type, handler: Any, **_: Any) -> None:
        self.handlers[message] = handler

    def on_timer(self, *_: Any) -> None:
        """No timer fires."""

    def on_task(self, *_: Any, **__: Any) -> None:
        """The first batch of jobs that follow is all of them."""

    async def handle(self, messages: Sequence[Message], number: int, *, at_once: bool) -> None:
        """Handle them in shared transactions, and one that fails with its predecessors in none, as the consumer does."""
        while messages:
            failed = await self._handle_together(messages, number, at_once=at_once)
            if failed is None:
                return
            await self._handle_together(messages[:failed], number, at_once=at_once)
            messages, number = messages[failed + 1 :], number + failed + 1

    async def _handle_together(
        self, messages: Sequence[Message], number: int, *, at_once: bool
    ) -> int | None:
        """Return the place of the message that fails."""
        shared, place = Shared([a_delivery(each) for each in messages]), 0
        try:
            async with self.conn.transaction():
                for place, message in enumerate(messages):
                    now = NOON + timedelta(seconds=number + place)
                    unit = Unit(self.conn, "scheduler", now, an_envelope(), shared=shared)
                    await self.handlers[type(message)](message, unit)
                    if at_once:
                        await shared_rows.write_changes(unit)
                await shared.end(self.conn)
        except RetuneError:
            return place
        return None

    async def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        return {name: [tuple(row) for row in await self.conn.fetch(query)] for name, query in ROWS.items()}


@pytest.fixture
async def schedulers(stack: Stack) -> AsyncIterator[tuple[Scheduler, Scheduler]]:
    async with AsyncExitStack() as exits:

        async def scheduler() -> Scheduler:
            dsn = await exits.enter_async_context(empty_schema(stack))
            await migrate("scheduler", dsn)
            conn = await asyncpg.connect(dsn)
            exits.push_async_callback(conn.close)
            await register_json(conn)
            return Scheduler(conn)

        yield await scheduler(), await scheduler()


def a_beginning(*job_ids: str) -> list[Message]:
    """A pool of two nodes, a dataset and jobs that are equal."""
    return [
        PoolCapacityChanged(
            pool="cpu-spot", capacity_type="spot", nodes=2, free=2, devices_per_node=1, price_per_hour="1"
        ),
        READY.model_copy(update={"dataset_id": a_dataset().dataset_id}),
        *map(a_submission, job_ids),
    ]


def a_submission(job_id: str) -> SubmitJob:
    return SubmitJob(job_id=job_id, tenant=TENANT, dataset_id=a_dataset().dataset_id, spec=a_job_spec())


def a_history(draw: random.Random) -> list[Message]:
    """Three jobs, and facts about them, mostly in the order in which it happens."""
    history = a_beginning(*JOBS)
    reached = dict.fromkeys(JOBS, 0)
    while len(history) < MESSAGES:
        job_id = draw.choice(JOBS)
        if draw.random() < 0.75:
            message = OFTEN[reached[job_id] % len(OFTEN)]()
            reached[job_id] += 1
        else:
            message = draw.choice(SELDOM)()
        changes = {
            "job_id": job_id,
            "attempt": draw.choice((1, 1, 1, 2)),
            "dataset_id": a_dataset().dataset_id,
        }
        changes |= {"new_job_id": f"ftjob-again-{len(history)}"}
        history.append(
            message.model_copy(
                update={name: value for name, value in changes.items() if name in type(message).model_fields}
            )
        )
    return history


@pytest.mark.parametrize("number", range(HISTORIES))
async def test_rows_and_messages_are_the_same(schedulers, number: int):
    at_end, at_once = schedulers
    draw = random.Random(f"{seed()}-{number}")
    history, place = a_history(draw), 0
    while place < len(history):
        together = history[place : place + draw.randrange(1, 25)]
        await at_end.handle(together, place, at_once=False)
        await at_once.handle(together, place, at_once=True)
        place += len(together)
        rows, expected_rows = await at_end.rows(), await at_once.rows()
        for name in ROWS:
            assert rows[name] == expected_rows[name], f"CHAOS_SEED={seed()} {name} after {place} messages"
    assert JobScheduled.type in {row[3] for row in rows["outbox"]}


async def test_a_job_that_ends_is_nobodys_duplicate_any_more(schedulers):
    scheduler, _ = schedulers
    _, *without_pool = a_beginning("ftjob-1")
    await scheduler.handle(without_pool, 0, at_once=False)
    submissions = a_submission("ftjob-2"), a_submission("ftjob-3")
    await scheduler.handle([submissions[0], incoming.cancel(), submissions[1]], 10, at_once=False)
    queued = await scheduler.conn.fetch(
        "SELECT aggregate_id, value FROM outbox WHERE type = 'JobQueued' ORDER BY aggregate_id"
    )
    duplicates = {row[0]: json.loads(row[1])["duplicate_of"] for row in queued}
    assert duplicates == {"ftjob-1": None, "ftjob-2": "ftjob-1", "ftjob-3": "ftjob-2"}
