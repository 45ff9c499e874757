"""What a service has applied and how far it has read each event stream: looked up and written for several messages at
once.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.messaging.delivery import Delivery
from shared.postgres.database import Connection
from shared.record import Record

# With EXISTS a plan may read all of `waiting` once for all messages.
FIND_ENTRIES = """
    SELECT topic, event_id, aggregate_id,
           (SELECT payload_sha256 FROM inbox
             WHERE consumer = $1 AND inbox.topic = asked.topic AND inbox.event_id = asked.event_id) AS applied,
           (SELECT sequence FROM position
             WHERE position.topic = asked.topic AND position.aggregate_id = asked.aggregate_id) AS last,
           coalesce(
               (SELECT true FROM parked
                 WHERE parked.topic = asked.topic AND parked.aggregate_id = asked.aggregate_id
                   AND state = 'parked' AND blocks LIMIT 1),
               (SELECT true FROM waiting
                 WHERE waiting.topic = asked.topic AND waiting.aggregate_id = asked.aggregate_id LIMIT 1),
               false) AS is_held,
           coalesce(
               (SELECT true FROM waiting
                 WHERE waiting.topic = asked.topic AND waiting.aggregate_id = asked.aggregate_id
                   AND failures > 0 LIMIT 1),
               false) AS is_behind_failed
      FROM unnest($2::text[], $3::text[], $4::text[]) AS asked (topic, event_id, aggregate_id)"""
# A member that has lost the partition may write late, with a number that the new member has passed.
INSERT_ENTRIES = """
    WITH entry AS (
        SELECT * FROM unnest($2::text[], $3::text[], $4::bytea[], $5::text[], $6::bigint[])
                   AS entry (topic, event_id, payload_sha256, aggregate_id, sequence)),
    entered AS (
        INSERT INTO inbox (consumer, topic, event_id, payload_sha256)
        SELECT $1, topic, event_id, payload_sha256 FROM entry WHERE payload_sha256 IS NOT NULL
        ON CONFLICT DO NOTHING RETURNING topic, event_id),
    moved AS (
        INSERT INTO position (topic, aggregate_id, sequence)
        SELECT topic, aggregate_id, max(entry.sequence) FROM entry LEFT JOIN entered USING (topic, event_id)
         WHERE entry.sequence IS NOT NULL AND (payload_sha256 IS NULL OR entered.event_id IS NOT NULL)
         GROUP BY topic, aggregate_id ORDER BY topic, aggregate_id
        ON CONFLICT (topic, aggregate_id) DO UPDATE SET sequence = greatest(position.sequence, excluded.sequence))
    SELECT count(*) FROM entered"""


@dataclass
class StreamState:
    """What is known of an event stream, or of the commands for one aggregate."""

    last: int | None
    """Number of the event that was read last."""
    is_held: bool
    """Whether a message of it is parked or waits, behind which this one may come."""
    is_behind_failed: bool
    """Whether one that failed waits to be tried again."""


@dataclass(frozen=True)
class Entry:
    """That a message was handled, or, of an event stream, passed over."""

    topic: str
    event_id: str
    payload_sha256: bytes | None
    """None where no handler takes it."""
    aggregate_id: str
    sequence: int | None
    """None where it is of no event stream."""


def entry_of(delivery: Delivery, *, is_handled: bool) -> Entry:
    envelope, topic = delivery.envelope, delivery.topic
    digest = payload_digest(delivery.record) if is_handled else None
    return Entry(
        topic.name, envelope.id, digest, envelope.key, envelope.sequence if topic.is_event_stream else None
    )


class DuplicateEntry(Exception):
    """Another member applied one of the messages while this transaction handled them."""


class Inbox:
    """The inbox in a transaction: what it has of some messages, and what is entered of them one by one."""

    def __init__(self, conn: Connection, consumer: str, *, at_end: bool) -> None:
        """at_end: what is entered is written by `end`, all at once."""
        self._conn = conn
        self._consumer = consumer
        self._left: list[Entry] | None = [] if at_end else None
        self._applied: dict[tuple[str, str], bytes] = {}
        self._streams: dict[tuple[str, str], StreamState] = {}

    async def read(self, deliveries: Sequence[Delivery]) -> None:
        """Look these up, the only ones that it is asked of."""
        keys = [(each.topic.name, each.envelope.id, each.envelope.key) for each in deliveries]
        for row in await self._conn.fetch(FIND_ENTRIES, self._consumer, *_columns(keys)) if keys else ():
            state = StreamState(row["last"], row["is_held"], row["is_behind_failed"])
            self._streams[row["topic"], row["aggregate_id"]] = state
            if row["applied"] is not None:
                self._applied[row["topic"], row["event_id"]] = row["applied"]

    def applied(self, delivery: Delivery) -> bytes | None:
        """Return the digest of the payload with which the message was applied; None where it was not."""
        return self._applied.get((delivery.topic.name, delivery.envelope.id))

    def stream(self, delivery: Delivery) -> StreamState:
        return self._streams[delivery.topic.name, delivery.envelope.key]

    async def enter(self, entry: Entry) -> bool:
        """Return whether the message is new to the inbox; where it is written at the end, that is known then."""
        if entry.payload_sha256 is not None:
            self._applied[entry.topic, entry.event_id] = entry.payload_sha256
        if entry.sequence is not None:
            self._streams[entry.topic, entry.aggregate_id].last = entry.sequence
        if self._left is None:
            return await insert(self._conn, self._consumer, [entry]) == 1
        self._left.append(entry)
        return True

    def hold(self, topic: str, aggregate_id: str) -> None:
        """A message was parked that holds back those behind it."""
        if state := self._streams.get((topic, aggregate_id)):
            state.is_held = True

    async def end(self) -> None:
        """Raises DuplicateEntry."""
        if not self._left:
            return
        num_handled = sum(entry.payload_sha256 is not None for entry in self._left)
        if (num_new := await insert(self._conn, self._consumer, self._left)) != num_handled:
            raise DuplicateEntry(f"{num_handled} messages were handled, {num_new} of them new to the inbox")


async def insert(conn: Connection, consumer: str, entries: Sequence[Entry]) -> int:
    """Write them down; return how many of those that were handled are new to the inbox."""
    rows = [
        (each.topic, each.event_id, each.payload_sha256, each.aggregate_id, each.sequence) for each in entries
    ]
    number: int = await conn.fetchval(INSERT_ENTRIES, consumer, *_columns(rows))
    return number


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def payload_digest(record: Record) -> bytes:
    return hashlib.sha256(record.value or b"").digest()
