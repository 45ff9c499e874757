"""Messages that came before what they refer to, or whose handler failed; later ones of their aggregate wait too.

The loop that consumes does not wait: a message to be tried later is a row, and other aggregates continue.
"""

import asyncio
import math
import time
from datetime import datetime, timedelta
from typing import Any

from shared.errors import ParentUnknown
from shared.messaging.delivery import Delivery, Unreadable, read
from shared.messaging.wake import WITHOUT_A_WAKE_SECONDS, wait_for_wake
from shared.postgres.database import Connection, Database, false_if_unavailable
from shared.record import Record
from shared.telemetry.metrics import WAITING

BEHIND = "behind a waiting message"
HEADS_SECONDS = 1.0
FAILED_AT_ONCE = 20
"""Limit per round of messages that failed before, so that those waiting for a parent are tried in between."""

INSERT = """
    INSERT INTO waiting
        (parent, topic, partition, "offset", aggregate_id, event_id, key, headers, value, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (topic, event_id) DO NOTHING"""
INSERT_FAILED = """
    INSERT INTO waiting
        (parent, topic, partition, "offset", aggregate_id, event_id, key, headers, value, expires_at,
         failures, not_before)
    VALUES ('', $1, $2, $3, $4, $5, $6, $7, $8, 'infinity', $9, clock_timestamp() + $10)
    ON CONFLICT (topic, event_id) DO NOTHING"""
FAILURES = "SELECT failures FROM waiting WHERE id = $1"
FAILED_AGAIN = "UPDATE waiting SET failures = $2, not_before = clock_timestamp() + $3 WHERE id = $1"
NOW_FOR_PARENT = """
    UPDATE waiting SET parent = $2, expires_at = $3, failures = 0 WHERE id = $1 AND (failures > 0 OR parent <> $2)"""
IS_BEHIND = "SELECT EXISTS (SELECT FROM waiting WHERE topic = $1 AND aggregate_id = $2 AND id < $3)"
IS_EXPIRED = "SELECT expires_at < $2 FROM waiting WHERE id = $1"
HEADS = """
    WITH heads AS (
        SELECT DISTINCT ON (topic, aggregate_id)
               id, topic, partition, "offset", key, headers, value, failures, not_before
          FROM waiting ORDER BY topic, aggregate_id, id)
    (SELECT * FROM heads WHERE failures = 0)
     UNION ALL
    (SELECT * FROM heads WHERE failures > 0 AND not_before <= clock_timestamp() ORDER BY not_before LIMIT $1)"""
# A row that is locked is being tried or released in another transaction, and is not waited for here.
TAKE_RELEASED = """
    UPDATE waiting SET released = false
     WHERE id = ANY(ARRAY(SELECT id FROM waiting WHERE released ORDER BY id FOR UPDATE SKIP LOCKED))
    RETURNING id, topic, partition, "offset", key, headers, value"""
# The next message of its aggregate has its turn; outside event streams so has the next for the same parent, which may
# come behind others.
DELETE = """
    WITH gone AS (DELETE FROM waiting WHERE id = $1 RETURNING topic, aggregate_id, parent),
    next AS (
        SELECT (SELECT id FROM waiting WHERE topic = gone.topic AND aggregate_id = gone.aggregate_id
                   AND id > $1 ORDER BY id LIMIT 1) AS of_aggregate,
               (SELECT id FROM waiting WHERE topic = gone.topic AND aggregate_id = gone.aggregate_id
                   AND parent = gone.parent AND id > $1 ORDER BY id LIMIT 1) AS for_parent
          FROM gone)
    UPDATE waiting SET released = true FROM next WHERE failures = 0 AND id IN (of_aggregate, for_parent)"""
NO_ROW = 2**62
NUL = "\u0100"
"""Substitute for the byte 0 in `headers`, which jsonb cannot hold; latin-1 has no such character."""


async def add(conn: Connection, delivery: Delivery, unknown: ParentUnknown, *, now: datetime) -> None:
    record = delivery.record
    await conn.execute(
        INSERT,
        unknown.parent,
        record.topic,
        record.partition,
        record.offset,
        delivery.envelope.key,
        delivery.envelope.id,
        record.key,
        headers_to_json(record),
        record.value,
        now + unknown.within,
    )


async def add_failed(conn: Connection, delivery: Delivery, *, failures: int, pause: timedelta) -> None:
    record = delivery.record
    await conn.execute(
        INSERT_FAILED,
        *(record.topic, record.partition, record.offset, delivery.envelope.key, delivery.envelope.id),
        *(record.key, headers_to_json(record), record.value, failures, pause),
    )


async def now_for_parent(database: Database, row_id: int, unknown: ParentUnknown, *, now: datetime) -> None:
    """Restart the time limit of a message that failed before or waited for another parent."""
    await database.execute(NOW_FOR_PARENT, row_id, unknown.parent, now + unknown.within)


async def failures_of(database: Database, row_id: int) -> int:
    return await database.fetchval(FAILURES, row_id) or 0


async def is_behind_waiting(conn: Connection, delivery: Delivery, source: tuple[str, int]) -> bool:
    before = source[1] if source[0] == "waiting" else NO_ROW
    return bool(await conn.fetchval(IS_BEHIND, delivery.topic.name, delivery.envelope.key, before))


async def is_expired(database: Database, row_id: int, *, now: datetime) -> bool:
    return bool(await database.fetchval(IS_EXPIRED, row_id, now))


class WaitingMessages:
    """Tries messages again: the released ones when woken, and the first of each aggregate once a second."""

    def __init__(self, database: Database, consumer: Any, *, service: str) -> None:
        self._database = database
        self._consumer = consumer
        self._service = service
        self.wake_event = asyncio.Event()

    async def run(self) -> None:
        tried_at = -math.inf
        while True:
            are_more_due = False
            if time.monotonic() - tried_at < HEADS_SECONDS:
                await false_if_unavailable(self._try_released())
            else:
                tried_at = time.monotonic()
                are_more_due = await false_if_unavailable(self._try_heads())
            if are_more_due:
                tried_at = -math.inf
            else:
                await wait_for_wake(self.wake_event, at_most_seconds=WITHOUT_A_WAKE_SECONDS)

    async def _try_heads(self) -> bool:
        """Try the first message of each aggregate; return whether more of those that failed are due."""
        heads = await self._database.fetch(HEADS, FAILED_AT_ONCE)
        WAITING.labels(self._service).set(len(heads))
        for row in heads:
            await self._retry(row)
        await self._try_released()
        return bool(sum(row["failures"] > 0 for row in heads) == FAILED_AT_ONCE)

    async def _try_released(self) -> bool:
        """Try released messages; the end of one releases the next of its aggregate, which is tried at once."""
        while released := await self._database.fetch(TAKE_RELEASED):
            for row in released:
                await self._retry(row)
        return True

    async def _retry(self, row: Any) -> str:
        delivery = read(record_of(row))
        assert not isinstance(delivery, Unreadable), "only messages that were read can wait"

        async def resolve(conn: Connection) -> None:
            await conn.execute(DELETE, row["id"])

        outcome: str = await self._consumer.deliver(delivery, resolve=resolve, source=("waiting", row["id"]))
        return outcome


def headers_to_json(record: Record) -> list[list[str | None]]:
    """Return headers for jsonb: values may be any bytes or null, and latin-1 keeps each byte as one character."""
    return [
        [name.replace("\0", NUL), None if value is None else value.decode("latin-1").replace("\0", NUL)]
        for name, value in record.headers
    ]


def record_of(row: Any) -> Record:
    """Return the record from which a row of `waiting` or `parked` was made."""
    headers = tuple(
        (name.replace(NUL, "\0"), None if value is None else value.replace(NUL, "\0").encode("latin-1"))
        for name, value in row["headers"]
    )
    return Record(row["topic"], row["partition"], row["offset"], row["key"], headers, row["value"])
