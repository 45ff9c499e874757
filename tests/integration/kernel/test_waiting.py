"""Which of the waiting messages are tried when: a commit is no reason to try them all."""

import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from schemas.envelope import Envelope, to_headers
from schemas.node import NodesReleased
from schemas.topics import RUN_METRICS
from schemas.training import StepMetrics, StepsRecorded
from shared.clock import utc_now
from shared.errors import ParentUnknown
from shared.messaging.consumer import Consumer
from shared.messaging.unit import Unit
from shared.messaging.waiting import WaitingMessages
from shared.postgres.database import Database
from shared.record import Record
from tests.integration.kernel.conftest import NODE_EVENTS, Writer, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

offsets = itertools.count(3 * 10**9)
"""Beyond what any record of the log has."""


class World:
    """Messages of a tenant wait for the parent of that name."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self.database = database
        self.known: set[str] = set()
        self.tried: list[str] = []
        self.recorded: list[tuple[str, int]] = []
        """Attempt and first step of what was applied of the steps, which are of no event stream."""
        self._writer = writer
        self._consumer = Consumer("tracker", database, wake=lambda: None)
        self._consumer.on(NODE_EVENTS, NodesReleased, self._handle)
        self._consumer.on(RUN_METRICS.name, StepsRecorded, self._record)
        self.waiters = WaitingMessages(database, self._consumer, service="tracker")

    async def _handle(self, event: NodesReleased, unit: Unit) -> None:
        self.tried.append(event.tenant)
        if event.tenant not in self.known:
            raise ParentUnknown(f"parent:{event.tenant}", within=timedelta(minutes=5))

    async def consume(self, key: str, tenant: str) -> str:
        raw = self._writer.message(key, tenant=tenant)
        record = Record(NODE_EVENTS, 0, next(offsets), raw["key"], tuple(raw["headers"]), raw["value"])
        return await self._consumer.consume(record)

    async def _record(self, event: StepsRecorded, unit: Unit) -> None:
        attempt = f"{event.job_id}/{event.attempt}"
        if attempt not in self.known:
            raise ParentUnknown(attempt)
        await unit.keep_order(attempt)
        self.recorded.append((attempt, event.steps[0].step))

    async def consume_steps(self, key: str, attempt: int, step: int) -> str:
        message = StepsRecorded(job_id=key, tenant="acme", attempt=attempt, steps=(a_step(step),))
        envelope = Envelope(
            id=uuid4().hex, type=message.type, version=1, source="/retune/runner", time=utc_now(), key=key
        )
        headers, value = tuple(to_headers(envelope)), message.model_dump_json().encode()
        return await self._consumer.consume(
            Record(RUN_METRICS.name, 0, next(offsets), key.encode(), headers, value)
        )

    async def release(self, parent: str) -> None:
        self.known.add(parent)
        async with self.database.transaction() as conn:
            await Unit(conn, "tracker", self.database.now()).release(f"parent:{parent}")

    async def tries(self, step: Callable[[], Awaitable[bool]]) -> list[str]:
        self.tried.clear()
        await step()
        return sorted(self.tried)


def a_step(step: int) -> StepMetrics:
    numbers = dict.fromkeys(("loss", "learning_rate", "grad_norm", "tokens_per_second", "epoch"), 1.0)
    return StepMetrics(step=step, time=utc_now(), num_tokens=1, memory_bytes=1, **numbers)


@pytest.fixture
async def world(database: Database, writer: Writer, db) -> World:
    await db.execute("DELETE FROM waiting")
    return World(database, writer)


async def test_a_wake_tries_those_alone_whose_parent_is_known(world: World):
    for tenant in ("first", "second", "third"):
        assert await world.consume(new_key(), tenant) == "waiting"
    await world.release("second")
    assert await world.tries(world.waiters._try_released) == ["second"]
    assert await world.tries(world.waiters._try_released) == []
    assert await world.tries(world.waiters._try_heads) == ["first", "third"]


async def test_one_that_waits_on_is_tried_again_once_it_is_released_again(world: World):
    await world.consume(new_key(), "parent")
    for _ in range(2):
        await world.release("parent")
        world.known.clear()
        assert await world.tries(world.waiters._try_released) == ["parent"]
        assert await world.tries(world.waiters._try_released) == []


async def test_those_behind_it_follow_at_once_up_to_one_that_waits_for_something_else(world: World, db):
    key = new_key()
    for tenant in ("first", "first", "second", "third"):
        await world.consume(key, tenant)
    await world.release("first")
    await world.release("third")
    assert await world.tries(world.waiters._try_released) == ["first", "first", "second"]
    await world.release("second")
    assert await world.tries(world.waiters._try_released) == ["second", "third"]
    assert await db.fetchval("SELECT count(*) FROM waiting") == 0


async def test_who_comes_to_the_front_has_its_time_from_there_on(world: World, db):
    key = new_key()
    for tenant in ("first", "second"):
        await world.consume(key, tenant)
    await db.execute("UPDATE waiting SET expires_at = clock_timestamp() - interval '1 hour'")
    await world.release("first")
    await world.waiters._try_released()
    assert [row["parent"] for row in await db.fetch("SELECT parent FROM waiting")] == ["parent:second"]
    assert await db.fetchval("SELECT bool_and(expires_at > clock_timestamp()) FROM waiting")


async def test_one_that_keeps_the_order_waits_behind_those_of_its_key_and_parent_alone(world: World, db):
    """Their parent may be known before they are tried again; one whose parent never comes holds up nothing."""
    key, other = new_key(), new_key()
    assert await world.consume_steps(key, 1, 1) == "waiting"
    assert await world.consume_steps(key, 2, 30) == "waiting"
    world.known |= {f"{key}/1", f"{other}/1"}
    for step in (11, 21):
        assert await world.consume_steps(key, 1, step) == "waiting"
    assert await world.consume_steps(other, 1, 1) == "applied"
    await world.waiters._try_heads()
    assert world.recorded == [(f"{other}/1", 1), *((f"{key}/1", step) for step in (1, 11, 21))]
    assert await world.consume_steps(key, 1, 31) == "applied"
    assert await db.fetchval("SELECT count(*) FROM waiting") == 1


async def test_what_nobody_released_is_found_within_a_second(service, writer: Writer, db):
    """As where the parent came between the look for it and the row of who waits."""
    key = new_key()
    await writer.good(key, tenant="orphan")
    await until(lambda: db.fetchval("SELECT true FROM waiting WHERE aggregate_id = $1", key), "it to wait")
    await db.execute("INSERT INTO parent VALUES ($1)", key)
    await until(lambda: db.fetchval("SELECT true FROM effect WHERE aggregate_id = $1", key), "its effect")
