"""A base model that changes under many routed slots: they are stopped in batches, and none is forgotten."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.envelope import Envelope
from services.serving_controller import store
from services.serving_controller.decide.slots import Served
from services.serving_controller.handlers.messages import STOPPED_TOGETHER, Messages, StopStale
from services.serving_controller.handlers.rounds import ReconcileLoop
from services.serving_controller.model import ReplicaSet, Slot
from shared.clock import utc_now
from shared.messaging.unit import Unit
from shared.postgres.database import register_json
from shared.postgres.migrate import migrate
from tests.integration.scratch import empty_schema
from tests.unit.serving_controller.builders import (
    BASE_SHA,
    KEEP,
    ONE,
    POOL,
    TWO,
    a_pending_slot,
    a_ready_slot,
    an_address,
    stale,
)

pytestmark = pytest.mark.stack

SLOTS = 3 * STOPPED_TOGETHER + 7
STATEMENTS = 12 * STOPPED_TOGETHER
"""Of a transaction, whatever the number of slots."""
END_NEXT = "DELETE FROM task WHERE key = (SELECT key FROM task ORDER BY key LIMIT 1) RETURNING payload"
STATES = "SELECT state, route IS NOT NULL AS is_routed, count(*) AS slots FROM slot GROUP BY 1, 2"


@dataclass
class Controller:
    """Handlers on a schema of their own; each transaction says how many statements it had."""

    conn: asyncpg.Connection
    messages: Messages = field(default_factory=lambda: Messages(keep=KEEP))
    statements: list[int] = field(default_factory=list)

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[Unit]:
        asked: list[Any] = []
        envelope = Envelope(
            id=uuid4().hex, type="any", version=1, source="/retune/any", time=utc_now(), key="any"
        )
        with self.conn.query_logger(asked.append):
            async with self.conn.transaction():
                yield Unit(self.conn, "serving_controller", utc_now(), envelope)
        self.statements.append(len(asked))

    async def add(self, like: Slot, count: int) -> None:
        async with self.unit() as unit:
            for number in range(count):
                empty = await store.get_slot(unit.conn, like.tenant, f"{like.name}-{number:04}")
                await store.save_slot(unit.conn, replace(like, name=empty.name, revision=empty.revision))
        self.statements.clear()

    async def hear_stale(self) -> None:
        async with self.unit() as unit:
            await self.messages.adapters_stale(stale(), unit)

    async def stop_next(self) -> bool:
        """As the kernel ends a task: its row goes in the same transaction."""
        async with self.unit() as unit:
            row = await self.conn.fetchrow(END_NEXT)
            if row is not None:
                await self.messages.stop_stale(StopStale.model_validate(row["payload"]), None, unit)
        return row is not None

    async def stop_all(self) -> None:
        while await self.stop_next():
            pass

    async def states(self) -> dict[tuple[str, bool], int]:
        rows = await self.conn.fetch(STATES)
        return {(row["state"], row["is_routed"]): row["slots"] for row in rows}

    async def emitted(self) -> Counter[str]:
        statement = "SELECT type, convert_from(value, 'UTF8')::json ->> 'slot' AS slot FROM outbox"
        rows = await self.conn.fetch(statement)
        assert len(rows) == len(set(rows)), "each slot has one event"
        return Counter(row["type"] for row in rows)


@pytest.fixture
async def controller(stack: Stack) -> AsyncIterator[Controller]:
    async with empty_schema(stack) as dsn:
        await migrate("serving_controller", dsn)
        conn = await asyncpg.connect(dsn)
        await register_json(conn)
        yield Controller(conn)
        await conn.close()


async def test_no_transaction_grows_with_the_number_of_slots(controller: Controller):
    await controller.add(a_ready_slot(ONE), SLOTS)
    await controller.hear_stale()
    assert await controller.states() == {
        ("failed", False): STOPPED_TOGETHER,
        ("ready", True): SLOTS - STOPPED_TOGETHER,
    }
    await controller.stop_all()
    assert await controller.states() == {("failed", False): SLOTS}
    assert await controller.emitted() == {"DeploymentStopped": SLOTS, "DeploymentFailed": SLOTS}
    assert max(controller.statements) < STATEMENTS


async def test_what_the_name_points_back_to_before_its_batch_is_served_on(controller: Controller):
    await controller.add(a_ready_slot(ONE), SLOTS)
    await controller.hear_stale()
    async with controller.unit() as unit:
        await store.save_base_model(unit.conn, ONE.base_model, BASE_SHA)
    await controller.stop_all()
    assert (await controller.states())["ready", True] == SLOTS - STOPPED_TOGETHER


async def test_nothing_is_routed_before_its_batch(controller: Controller):
    await controller.add(a_pending_slot(TWO), SLOTS)
    loop = ReconcileLoop(
        cast("Any", controller), cast("Any", None), policy=cast("Any", Policy), unanswered=KEEP
    )
    served = {TWO.served_name: Served(frozenset({an_address()}), is_everywhere=True)}
    await controller.hear_stale()
    await loop._switch(ReplicaSet(POOL, BASE_SHA), served)
    assert await controller.states() == {
        ("failed", False): STOPPED_TOGETHER,
        ("pending", False): SLOTS - STOPPED_TOGETHER,
    }
    await controller.stop_all()
    assert await controller.states() == {("failed", False): SLOTS}


class Policy:
    """As much of it as a switch asks for."""

    keep = KEEP
