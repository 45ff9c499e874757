"""What a row of `parked` stands for: one record, and of those that others write only so many with their bytes."""

import base64
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import REGISTRY

from shared.messaging.consumer import Consumer
from shared.record import Record
from tests.integration.kernel.conftest import NODE_EVENTS, new_key

pytestmark = pytest.mark.stack

offsets = itertools.count(uuid4().int % 10**15 + 10**9)
"""Beyond what any record of the log has, and others in each run."""
GARBAGE_BYTES = 1 + len(new_key())


@pytest.fixture
def consumer(database) -> Consumer:
    return Consumer("tracker", database, wake=lambda: None, kept_rows=2)


@pytest.fixture
def garbage(writer) -> Callable[..., Record]:
    """A record that nobody can read."""

    def build(key: str, **changes: Any) -> Record:
        raw = writer.message(key)
        record = Record(NODE_EVENTS, 0, next(offsets), raw["key"], tuple(raw["headers"]), b"[" + key.encode())
        return replace(record, **changes)

    return build


async def rows(db, topic: str, offset: int) -> list[tuple[Any, ...]]:
    rows = await db.fetch(
        """SELECT state, convert_from(key, 'UTF8') AS key, value FROM parked
            WHERE topic = $1 AND "offset" = $2 ORDER BY id""",
        *(topic, offset),
    )
    return [tuple(row) for row in rows]


class TestAPlaceInATopicThatWasMadeAgain:
    @pytest.mark.parametrize("state", ["parked", "dropped"])
    async def test_keeps_the_new_record_beside_the_old_one(self, consumer, garbage, db, state):
        offset, old, new = next(offsets), new_key(), new_key()
        await consumer.consume(garbage(old, offset=offset))
        await db.execute("UPDATE parked SET state = $2 WHERE aggregate_id = $1", old, state)
        assert await consumer.consume(garbage(new, offset=offset)) == "parked"
        assert await rows(db, NODE_EVENTS, offset) == [
            (state, old, b"[" + old.encode()),
            ("parked", new, b"[" + new.encode()),
        ]

    async def test_tells_records_apart_by_key_and_headers_too(self, consumer, garbage, db):
        key, offset = new_key(), next(offsets)
        first = garbage(key, offset=offset)
        others = [replace(first, key=new_key().encode()), replace(first, headers=first.headers[:-1])]
        for record in (first, *others, first, *others):
            await consumer.consume(record)
        assert len(await rows(db, NODE_EVENTS, offset)) == 3


class TestTheQuota:
    @pytest.fixture
    def topic(self) -> str:
        return f"tenant.t-{new_key()[:12]}.commands"

    async def park(self, consumer: Consumer, garbage: Callable[..., Record], topic: str, count: int) -> None:
        for offset in range(count):
            assert await consumer.consume(garbage(new_key(), topic=topic, offset=offset)) == "parked"

    async def test_keeps_place_reason_and_digest_of_what_a_tenant_sends_beyond_it(
        self, consumer, garbage, db, topic
    ):
        await self.park(consumer, garbage, topic, 5)
        kept = await db.fetch(
            '''SELECT "offset", reason, key IS NULL AND value IS NULL AND headers = '[]' AS is_empty, is_cut,
                      value_bytes, octet_length(value_sha256) AS digest_bytes
                 FROM parked WHERE topic = $1 ORDER BY "offset"''',
            topic,
        )
        assert [row["is_empty"] for row in kept] == [False, False, True, True, True]
        assert [row["is_cut"] for row in kept] == [False, False, True, True, True]
        assert {(row["reason"], row["value_bytes"], row["digest_bytes"]) for row in kept} == {
            ("unknown_type", GARBAGE_BYTES, 32)
        }
        labels = {"service": "tracker", "topic": topic}
        assert REGISTRY.get_sample_value("messages_parked_without_bytes_total", labels) == 3

    async def test_tells_of_each_but_sends_no_bytes_on(self, consumer, garbage, db, topic):
        await self.park(consumer, garbage, topic, 3)
        facts = [
            json.loads(row["value"])
            for row in await db.fetch("SELECT value FROM outbox WHERE type = 'MessageParked' ORDER BY id")
        ]
        ours = [fact for fact in facts if fact["topic"] == topic]
        assert [len(base64.b64decode(fact["value_base64"])) for fact in ours] == [
            GARBAGE_BYTES,
            GARBAGE_BYTES,
            0,
        ]
        assert {fact["value_bytes"] for fact in ours} == {GARBAGE_BYTES}

    async def test_of_one_tenant_is_not_anothers_nor_a_services(self, consumer, garbage, db, topic):
        await self.park(consumer, garbage, topic, 3)
        other = f"tenant.t-{new_key()[:12]}.commands"
        await self.park(consumer, garbage, other, 1)
        for _ in range(3):
            await consumer.consume(garbage(new_key()))
        bare = await db.fetch(
            "SELECT DISTINCT topic FROM parked WHERE is_bare AND topic = ANY($1)",
            [topic, other, NODE_EVENTS],
        )
        assert [row["topic"] for row in bare] == [topic]

    async def test_holds_for_what_nodes_write(self, consumer, garbage, db):
        await db.execute("DELETE FROM parked WHERE topic = 'run.metrics'")
        await self.park(consumer, garbage, "run.metrics", 3)
        assert await db.fetchval("SELECT count(*) FROM parked WHERE topic = 'run.metrics' AND is_bare") == 1

    async def test_does_not_count_a_record_twice(self, consumer, garbage, db, topic):
        records = [garbage(new_key(), topic=topic, offset=offset) for offset in range(2)]
        for record in (*records, *records):
            await consumer.consume(record)
        assert await db.fetchval("SELECT count(*) FROM parked WHERE topic = $1 AND NOT is_bare", topic) == 2
