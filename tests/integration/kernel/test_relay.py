"""One relay of a schema publishes at a time; one that cannot send ends, and nothing leaves the outbox."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from deploy.bootstrap.kafka import administrator
from deploy.local.site import site
from deploy.local.stack import Stack
from schemas.base import CapacityType
from schemas.cost import CostAccrued
from shared.clock import utc_now
from shared.messaging.lease import Lease
from shared.messaging.reader import TopicReader
from shared.messaging.relay import SET_ASIDE_BEHIND, Relay, SendFailed
from shared.messaging.unit import INSERT_OUTBOX, Unit
from tests.chaos.scale import note
from tests.integration.kernel.conftest import new_key
from tests.integration.test_retune import retune
from tests.waiting import until

pytestmark = pytest.mark.stack

IS_PUBLISHED = """
    SELECT NOT EXISTS (SELECT FROM unpublished WHERE unpublished.id = outbox.id) FROM outbox WHERE aggregate_id = $1"""
TTL = timedelta(seconds=0.5)


class Batch:
    def __init__(self) -> None:
        self.keys: list[str] = []

    def append(self, *, key: bytes, **_: Any) -> object:
        self.keys.append(key.decode())
        return self

    def close(self) -> None: ...


class Producer:
    """Takes what a relay hands over, as Kafka would."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.error: Exception | None = None
        self.refuses = ""
        """A key of which it takes no batch, and nothing more of whoever tried."""
        self.is_spent = False
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def start(self) -> None:
        self.is_spent = False

    async def stop(self) -> None: ...

    async def partitions_for(self, topic: str) -> set[int]:
        return {0}

    def create_batch(self) -> Batch:
        return Batch()

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> asyncio.Future[None]:
        await self.go_on.wait()
        acknowledged = asyncio.get_running_loop().create_future()
        if self.refuses in batch.keys:
            self.is_spent = True
            acknowledged.set_exception(MessageSizeTooLargeError())
        elif self.error or self.is_spent:
            acknowledged.set_exception(self.error or KafkaTimeoutError())
        else:
            self.keys += batch.keys
            acknowledged.set_result(None)
        return acknowledged


@pytest.fixture
async def emit(database) -> Callable[[], Any]:
    """Puts one fact in the outbox; its key."""

    async def one(job_id: str = "") -> str:
        job_id = job_id or new_key()
        async with database.transaction() as conn:
            await Unit(conn, "tracker", utc_now()).emit(
                CostAccrued(
                    job_id=job_id,
                    tenant="acme",
                    attempt=1,
                    node_seconds=1.0,
                    cost="0.1",
                    total="0.1",
                    capacity_type=CapacityType.SPOT,
                    until=utc_now(),
                )
            )
        return job_id

    return one


def a_relay(database, producer: Producer, owner: str) -> Relay:
    lease = Lease(database, "relay", owner=owner, ttl=TTL)
    return Relay(database, lambda: producer, lease, service="tracker", renew_seconds=TTL.total_seconds() / 3)


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[None]:
    task = asyncio.create_task(relay.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
async def free_lease(db) -> AsyncIterator[None]:
    """No lease of an earlier test, and none for a later one to wait for."""
    await db.execute("DELETE FROM lease")
    yield
    await db.execute("DELETE FROM lease")


async def test_a_relay_that_hangs_is_followed_by_another_and_publishes_no_more(database, emit, db):
    first, second = Producer(), Producer()
    hanging, successor = a_relay(database, first, "tracker-0"), a_relay(database, second, "tracker-1")

    async def published(key: str) -> bool:
        return await db.fetchval(IS_PUBLISHED, key)

    async with running(hanging):
        before = await emit()
        await until(lambda: published(before), "the first relay to publish")
        granted = hanging._lease.token
        async with running(successor):
            first.go_on.clear()
            meanwhile = await emit()
            await until(lambda: published(meanwhile), "the second relay to take over")
            assert successor._lease.token == granted + 1
            first.go_on.set()

            async def has_lost() -> bool:
                return hanging._lease.token is None

            await until(has_lost, "the first relay to see that it lost the lease")
            after = await emit()
            await until(lambda: published(after), "the second relay to continue")
    assert (before in first.keys, after in first.keys) == (True, False)
    assert [key for key in second.keys if key in (meanwhile, after)] == [meanwhile, after]
    assert await db.fetchval("SELECT owner FROM lease WHERE name = 'relay'") == "tracker-1"


async def test_a_relay_whose_records_are_not_taken_ends_and_keeps_them(database, emit, db):
    producer = Producer()
    relay = a_relay(database, producer, "tracker-0")
    producer.error = KafkaTimeoutError()
    key = await emit()
    with pytest.raises(SendFailed, match=r"rows were not acknowledged: KafkaTimeoutError"):
        await asyncio.wait_for(relay.run(), 30)
    assert not await db.fetchval(IS_PUBLISHED, key)
    producer.error = None

    async def sent() -> bool:
        return key in producer.keys

    async with running(a_relay(database, producer, "tracker-0")):
        await until(sent, "the relay after its restart")


SET_ASIDE = "SELECT detail FROM set_aside WHERE aggregate_id = $1 ORDER BY id"
LARGE = 2 * 1024 * 1024


async def test_of_several_rows_the_one_that_is_refused_is_set_aside_with_those_behind_it(database, emit, db):
    producer = Producer()
    producer.refuses = new_key()
    before = await emit()
    await emit(producer.refuses)
    between = await emit()
    await emit(producer.refuses)
    after = await emit()

    async def all_decided() -> bool:
        return {before, between, after} <= set(producer.keys) and not await db.fetchval(
            "SELECT EXISTS (SELECT FROM unpublished)"
        )

    async with running(a_relay(database, producer, "tracker-0")):
        await until(all_decided, "the others to be sent")
        refused, behind = [row["detail"] for row in await db.fetch(SET_ASIDE, producer.refuses)]
    assert "MessageSizeTooLargeError" in refused
    assert behind == "behind an event of the same aggregate that was set aside"
    assert producer.refuses not in producer.keys
    assert [key for key in producer.keys if key in (before, between, after)] == [before, between, after]


@pytest.fixture
async def large_limit(stack: Stack) -> AsyncIterator[Callable[[int], Any]]:
    """Sets the limit of cost.events on a batch, in bytes."""

    async def set_limit(size: int) -> None:
        async with administrator(site(stack.state)) as admin:
            config = {"max.message.bytes": str(size)}
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "cost.events", config)])

    yield set_limit
    await set_limit(1024 * 1024)


@pytest.fixture
async def refused(database, service) -> Callable[[], Any]:
    """Puts a row in the outbox that the broker does not take; its key."""

    async def one() -> str:
        story, headers = new_key(), {"ce_id": new_key(), "content-type": "application/json"}
        async with database.transaction() as conn:
            await conn.execute(
                INSERT_OUTBOX, headers["ce_id"], "cost.events", story, "CostAccrued", headers, b"x" * LARGE
            )
        return story

    return one


async def rows_aside(stack: Stack, story: str) -> list[dict[str, Any]]:
    """Of the story, as an operator sees them."""
    listed = await retune(stack, "--json", "relay", "set-aside", "--service", "tracker")
    return [row for row in listed.value if row["aggregate_id"] == story]


async def test_a_row_that_the_broker_does_not_take_holds_no_other_and_is_sent_when_it_does(
    stack, refused, emit, db, login, large_limit
):
    story = await refused()
    await emit(story)
    others = [await emit() for _ in range(3)]
    for key in others:
        await until(lambda key=key: db.fetchval(IS_PUBLISHED, key), "another aggregate's event")
    details = await until(lambda: _two(db, story), "both of the story set aside")
    assert "MessageSizeTooLargeError" in details[0]
    assert await _sizes(login, story) == []
    first, second = await rows_aside(stack, story)
    assert (first["sequence"], first["bytes"], second["sequence"]) == (1, LARGE, 2)
    assert "MessageSizeTooLargeError" in first["detail"]
    again = await retune(stack, "relay", "send", "tracker", str(first["id"]))
    assert (again.code, "set aside again: MessageSizeTooLargeError" in again.err) == (1, True), again.err
    await large_limit(2 * LARGE)
    answer = await retune(stack, "relay", "send", "tracker", str(second["id"]))
    assert (answer.code, "sent, 2 rows in all" in answer.err) == (0, True), answer.err
    sent = await until(lambda: _sizes(login, story), "the story in its topic")
    assert sent[0] == LARGE
    assert len(sent) == 2
    assert await db.fetch(SET_ASIDE, story) == []
    note("row that is refused", bytes=LARGE, set_aside=len(details), others_sent=len(others))


async def test_a_row_that_is_dropped_leaves_no_gap_in_its_story(stack, refused, emit, db, login):
    story = await refused()
    await emit(story)
    await emit(story)
    await until(lambda: _all_aside(db, story, 3), "all of the story set aside")
    first = (await rows_aside(stack, story))[0]["id"]
    answer = await retune(stack, "relay", "drop", "tracker", str(first), "--reason", "larger than any limit")
    assert (answer.code, "dropped, 2 rows behind it are sent" in answer.err) == (0, True), answer.err
    await emit(story)
    assert await until(lambda: _sequences(login, story, 3), "the rest in its topic") == [1, 2, 3]
    dropped = await db.fetchrow(
        "SELECT sequence, octet_length(value), reason, dropped_by FROM dropped_event WHERE id = $1", first
    )
    assert tuple(dropped) == (1, LARGE, "larger than any limit", "operator")
    assert await rows_aside(stack, story) == []
    unknown = await retune(stack, "relay", "drop", "tracker", str(first), "--reason", "again")
    assert (unknown.code, f"tracker has no row {first} set aside" in unknown.err) == (1, True), unknown.err


async def test_a_row_is_not_dropped_from_before_what_is_published(stack, refused, emit, db):
    """Its number is missing there, and readers have parked what is behind it."""
    story = await refused()
    await emit(story)
    await until(lambda: _all_aside(db, story, 2), "both of the story set aside")
    await db.execute("DELETE FROM set_aside WHERE aggregate_id = $1 AND detail LIKE 'behind %'", story)
    (first,) = await rows_aside(stack, story)
    answer = await retune(stack, "relay", "drop", "tracker", str(first["id"]), "--reason", "x")
    assert (answer.code, f"later events of {story} are published" in answer.err) == (1, True), answer.err
    assert await rows_aside(stack, story) == [first]


async def test_a_row_that_nothing_holds_any_more_is_not_set_aside(database, emit, db):
    """Between reading it and setting it aside an operator may have dropped what was before it."""
    story = await emit()
    row_id = await db.fetchval("SELECT id FROM outbox WHERE aggregate_id = $1", story)
    await database.execute(SET_ASIDE_BEHIND, [row_id])
    assert await db.fetch(SET_ASIDE, story) == []
    assert await db.fetchval("SELECT EXISTS (SELECT FROM unpublished WHERE id = $1)", row_id)


async def _all_aside(db, story: str, count: int) -> bool:
    return len(await db.fetch(SET_ASIDE, story)) == count


async def _sequences(login, key: str, count: int) -> list[int]:
    """Numbers of the key's records, in the order of its topic; once there are so many."""
    async with TopicReader(login, ["cost.events"]) as reader:
        records = [each.record async for each in reader.to_the_end() if each.record.key == key.encode()]
    numbers = [int(dict(each.headers)["ce_sequence"]) for each in records]
    return numbers if len(numbers) == count else []


async def _two(db, story: str) -> list[str] | None:
    rows = [row["detail"] for row in await db.fetch(SET_ASIDE, story)]
    return rows if len(rows) == 2 else None


async def _sizes(login, key: str) -> list[int]:
    """How large each record of the key is, in the order of its topic; once there are two."""
    async with TopicReader(login, ["cost.events"]) as reader:
        records = [each.record async for each in reader.to_the_end()]
    mine = sorted((each for each in records if each.key == key.encode()), key=lambda each: each.offset)
    return [len(each.value) for each in mine] if len(mine) > 1 else []
