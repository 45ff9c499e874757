"""Records that Kafka deleted before a service read them: it continues with those left, and says what is gone."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import asyncpg
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from deploy.bootstrap.kafka import administrator
from deploy.local.site import site
from deploy.local.stack import Stack
from shared.service import Service
from tests.integration.kernel import counting
from tests.integration.kernel.conftest import NODE_EVENTS, Writer, new_key
from tests.waiting import until

pytestmark = pytest.mark.stack

PARTITION = TopicPartition(NODE_EVENTS, 0)
GONE = "records were gone before they were read"
APPLIED = "SELECT count(*) FROM effect WHERE aggregate_id = ANY($1)"
REASON = "SELECT reason FROM parked WHERE aggregate_id = $1"


@pytest.fixture
async def admin(stack: Stack) -> AsyncIterator[AIOKafkaAdminClient]:
    async with administrator(site(stack.state)) as admin:
        yield admin


@asynccontextmanager
async def running(env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    service = counting.build()
    async with service.running():
        yield service


async def until_applied(db: asyncpg.Connection, *keys: str) -> None:
    async def all_are() -> bool:
        return await db.fetchval(APPLIED, keys) == len(keys)

    await until(all_are, f"{len(keys)} messages to be applied")


async def committed(admin: AIOKafkaAdminClient) -> int:
    offsets = await admin.list_consumer_group_offsets("tracker")
    return offsets[PARTITION].offset


async def send(writer: Writer, keys: list[str]) -> list[int]:
    """Return the offsets of one message for each key."""
    return [(await writer.raw(**writer.message(key))).offset for key in keys]


def number_lost() -> float:
    labels = {"service": "tracker", "topic": NODE_EVENTS}
    return REGISTRY.get_sample_value("consumer_records_lost_total", labels) or 0.0


async def test_while_the_service_was_down_are_reported_once_and_what_is_left_is_applied(
    tracker_env, monkeypatch, writer: Writer, db, admin
):
    read, unread, left = new_key(), [new_key() for _ in range(4)], [new_key(), new_key()]
    async with running(tracker_env, monkeypatch) as service:
        await writer.good(read)
        await until_applied(db, read)
        await service.caught_up(NODE_EVENTS)
    before, position = number_lost(), await committed(admin)
    await send(writer, [*unread, read])
    first, *_, last = await send(writer, [*left, read])
    await admin.delete_records({PARTITION: RecordsToDelete(before_offset=first)})
    with capture_logs() as logs:
        async with running(tracker_env, monkeypatch) as service:
            await until_applied(db, *left)
            await service.caught_up(NODE_EVENTS)
        async with running(tracker_env, monkeypatch) as service:
            await service.caught_up(NODE_EVENTS)
    reported = [entry for entry in logs if entry["event"] == GONE]
    assert reported == [
        {
            "event": GONE,
            "log_level": "error",
            "module": "shared.messaging.missing_offsets",
            "topic": NODE_EVENTS,
            "partition": 0,
            "read_up_to": position,
            "log_start": first,
        }
    ]
    assert number_lost() - before == first - position == len(unread) + 1
    assert await db.fetchval(APPLIED, unread) == 0
    assert await committed(admin) == last + 1
    # In an event stream that was begun, the number after what is gone says so too.
    assert await db.fetchval(REASON, read) == "gap"


async def test_with_nothing_left_are_reported_and_later_ones_are_applied(
    tracker_env, monkeypatch, writer: Writer, db, admin
):
    read, later = new_key(), new_key()
    async with running(tracker_env, monkeypatch) as service:
        await writer.good(read)
        await until_applied(db, read)
        await service.caught_up(NODE_EVENTS)
    before, position = number_lost(), await committed(admin)
    unread = await send(writer, [new_key() for _ in range(3)])
    await admin.delete_records({PARTITION: RecordsToDelete(before_offset=unread[-1] + 1)})
    async with running(tracker_env, monkeypatch) as service:

        async def is_reported() -> bool:
            return number_lost() - before == len(unread)

        await until(is_reported, "the deleted records to be reported")
        assert await committed(admin) == unread[-1] + 1 == position + len(unread)
        await writer.good(later)
        await until_applied(db, later)


async def test_while_the_service_runs_are_reported_and_what_is_left_is_applied(
    service: Service, writer: Writer, db, admin
):
    """As of a topic whose turn does not come before retention does."""
    read, left = new_key(), new_key()
    await writer.good(read)
    await until_applied(db, read)
    await service.caught_up(NODE_EVENTS)
    before = number_lost()
    service._subscriber.consumer.pause(PARTITION)
    unread = await send(writer, [new_key() for _ in range(5)])
    await writer.good(left)
    await admin.delete_records({PARTITION: RecordsToDelete(before_offset=unread[-1] + 1)})
    service._subscriber.consumer.resume(PARTITION)
    await until_applied(db, left)
    assert number_lost() - before == len(unread)
