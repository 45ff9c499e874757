"""How long a message waits for its parent: an outage of ours does not count."""

import asyncio
from datetime import timedelta

import pytest

from schemas.node import NodesReleased
from shared.errors import ParentUnknown
from shared.messaging.consumer import Consumer
from shared.messaging.unit import Unit
from shared.messaging.waiting import WaitingMessages
from shared.record import Record
from tests.integration.kernel.conftest import NODE_EVENTS, new_key

pytestmark = pytest.mark.stack

OFFSET = 2 * 10**9
"""Beyond what any record of the log has."""


async def test_the_limit_counts_once_all_is_read_that_may_hold_the_parent(database, writer, db):
    """A service that was down for longer than the limit finds its parent behind it in the log."""
    is_read, tries = asyncio.Event(), []

    async def needs_a_parent(event: NodesReleased, unit: Unit) -> None:
        tries.append(event.key)
        if not is_read.is_set() or len(tries) < 4:
            raise ParentUnknown("job:late", within=timedelta(0))

    async def has_read_all() -> bool:
        return is_read.is_set()

    consumer = Consumer("tracker", database, wake=lambda: None, has_read_all=has_read_all)
    consumer.on(NODE_EVENTS, NodesReleased, needs_a_parent)
    waiters, key = WaitingMessages(database, consumer, service="tracker"), new_key()
    raw = writer.message(key)
    record = Record(NODE_EVENTS, 0, OFFSET, raw["key"], tuple(raw["headers"]), raw["value"])
    assert await consumer.consume(record) == "waiting"
    await waiters._try_heads()
    is_read.set()
    await waiters._try_heads()
    assert tries == [key] * 4
    for table in ("waiting", "parked"):
        assert await db.fetchval(f"SELECT count(*) FROM {table} WHERE aggregate_id = $1", key) == 0


async def test_a_service_has_read_all_once_what_was_there_has_its_effect(service, writer, db, monkeypatch):
    monkeypatch.setattr("shared.service.READ_ALL_SECONDS", 60.0)
    key = new_key()
    await writer.good(key)
    assert await service._has_read_all()
    assert await db.fetchval("SELECT count(*) FROM effect WHERE aggregate_id = $1", key) == 1


async def test_a_service_that_cannot_ask_has_not_read_all(service, monkeypatch):
    monkeypatch.setattr("shared.service.READ_ALL_SECONDS", 0.0)
    assert not await service._has_read_all()
