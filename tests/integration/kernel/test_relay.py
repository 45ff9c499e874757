"""One relay of a schema publishes at a time; one that cannot send ends, and nothing leaves the outbox."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError

from schemas.base import PriceClass
from schemas.cost import CostAccrued
from shared.clock import utc_now
from shared.messaging.lease import Lease
from shared.messaging.relay import Relay, SendFailed
from shared.messaging.unit import Unit
from tests.integration.kernel.conftest import new_key, until
from tests.integration.kernel.counting import job_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

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
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def partitions_for(self, topic: str) -> set[int]:
        return {0}

    def create_batch(self) -> Batch:
        return Batch()

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> asyncio.Future[None]:
        await self.go_on.wait()
        acknowledged = asyncio.get_running_loop().create_future()
        if self.error:
            acknowledged.set_exception(self.error)
        else:
            self.keys += batch.keys
            acknowledged.set_result(None)
        return acknowledged


@pytest.fixture
async def emit(database) -> Callable[[], Any]:
    """Puts one fact in the outbox; its key."""

    async def one() -> str:
        job_id = job_of(new_key())
        async with database.transaction() as conn:
            await Unit(conn, "tracker", utc_now()).emit(
                CostAccrued(
                    job_id=job_id,
                    tenant="acme",
                    attempt=1,
                    node_seconds=1.0,
                    cost="0.1",
                    total="0.1",
                    price_class=PriceClass.SPOT,
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
        granted = hanging._lease.epoch
        async with running(successor):
            first.go_on.clear()
            meanwhile = await emit()
            await until(lambda: published(meanwhile), "the second relay to take over")
            assert successor._lease.epoch == granted + 1
            first.go_on.set()

            async def has_lost() -> bool:
                return hanging._lease.epoch is None

            await until(has_lost, "the first relay to see that it lost the lease")
            after = await emit()
            await until(lambda: published(after), "the second relay to go on")
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
