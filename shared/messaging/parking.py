"""Messages set aside for a person, which are kept with their bytes and replayed or dropped by command, never lost.

A parked message of an event stream holds back every later one of the same aggregate, so that order survives.
"""

import base64
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

from schemas.envelope import MAX_NAME_BYTES
from schemas.parked import DropParked, MessageParked, ParkedResolved, ReplayParked
from shared.errors import Refused
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.delivery import Delivery, Unreadable, read, topic_named
from shared.messaging.unit import Task, Unit
from shared.messaging.waiting import headers_to_json, record_of
from shared.postgres.database import Connection, Database
from shared.record import Record
from shared.telemetry.metrics import PARKED_BARE
from shared.text import storable

log = get_logger(__name__)

KEPT_ROWS = 1_000
KEPT_VALUE_BYTES = 64 * 1024
KEPT_HEADER_BYTES = 32 * 1024
KEPT_KEY_BYTES = 2 * MAX_NAME_BYTES
"""Limits on what is kept of a record that could not be read. A message is kept whole: MAX_VALUE_BYTES bounds it."""

INSERT = """
    INSERT INTO parked
        (topic, partition, "offset", aggregate_id, event_id, sequence, key, headers, value,
         reason, detail, blocks, value_bytes, value_sha256, is_cut, record_sha256, is_bare)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
    ON CONFLICT (topic, partition, "offset", record_sha256) DO UPDATE SET reason = $10, detail = $11
        WHERE parked.state = 'parked'
    RETURNING id, (xmax = 0) AS is_new"""
IS_FULL = """
    SELECT count(*) >= $2 FROM (SELECT FROM parked WHERE topic = $1 AND NOT is_bare LIMIT $2) AS whole"""
IS_BEHIND = """
    SELECT EXISTS (SELECT FROM parked
                    WHERE topic = $1 AND aggregate_id = $2 AND state = 'parked' AND blocks AND id < $3
                      AND (sequence IS NULL OR sequence <= $4))"""
FIND = """
    SELECT id, topic, partition, "offset", aggregate_id, event_id, sequence, key, headers, value, state,
           reason, detail, is_cut
      FROM parked WHERE id = $1"""
NAME_RECORD = "UPDATE parked SET record_sha256 = $2 WHERE id = $1 AND record_sha256 = ''"
RESOLVE = """
    UPDATE parked SET state = $2, resolved_at = clock_timestamp() WHERE id = $1 AND state = 'parked'
    RETURNING true"""
SKIP_TO = """
    INSERT INTO position (topic, aggregate_id, sequence) VALUES ($1, $2, $3)
    ON CONFLICT (topic, aggregate_id) DO UPDATE SET sequence = greatest(position.sequence, $3)"""
FORGET_POSITION = "DELETE FROM position WHERE topic = $1 AND aggregate_id = $2"
NO_ROW = 2**62


class ReplayTask(Task, frozen=True):
    parked_id: int

    @property
    def key(self) -> str:
        return str(self.parked_id)


def from_delivery(delivery: Delivery, reason: str, detail: str) -> Unreadable:
    envelope = delivery.envelope
    return Unreadable(
        delivery.record,
        reason,
        storable(detail),
        envelope.key,
        envelope.id,
        envelope.sequence,
        is_message=True,
    )


def cut(record: Record) -> Record:
    """Return the part that is kept of a record that could not be read."""
    key, value = record.key, record.value
    return replace(
        record,
        key=None if key is None else key[:KEPT_KEY_BYTES],
        headers=_first_headers(record),
        value=None if value is None else bytes(value[:KEPT_VALUE_BYTES]),
    )


def bare(record: Record) -> Record:
    """Return what is kept of a record beyond the quota: its location in the log."""
    return replace(record, key=None, headers=(), value=None)


def digest_of(record: Record) -> bytes:
    """Return a digest of key, headers and value, each with its length, so that different records do not share one."""
    parts = [
        record.key,
        *(part for name, value in record.headers for part in (name.encode(), value)),
        record.value,
    ]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"-" if part is None else b"%d:" % len(part))
        digest.update(part or b"")
    return digest.digest()


def _first_headers(record: Record) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers up to the first that does not fit into KEPT_HEADER_BYTES."""
    sizes = accumulate(len(name.encode()) + len(value or b"") for name, value in record.headers)
    return tuple(each for each, size in zip(record.headers, sizes, strict=True) if size <= KEPT_HEADER_BYTES)


async def park(unit: Unit, unreadable: Unreadable, *, blocks: bool, kept_rows: int) -> None:
    """Keep the bytes and emit MessageParked, once per record, known by its location and digest.

    Of a topic that tenants or nodes write, the bytes of at most `kept_rows` records are kept.
    """
    whole = unreadable.record
    is_bare = await _is_beyond_quota(unit.conn, whole.topic, kept_rows)
    record = bare(whole) if is_bare else whole if unreadable.is_message else cut(whole)
    value = whole.value or b""
    digest = hashlib.sha256(value)
    row = await unit.conn.fetchrow(
        INSERT,
        record.topic,
        record.partition,
        record.offset,
        unreadable.aggregate_id,
        unreadable.event_id,
        unreadable.sequence,
        record.key,
        headers_to_json(record),
        record.value,
        unreadable.reason,
        unreadable.detail,
        blocks,
        len(value),
        digest.digest(),
        record != whole,
        digest_of(whole),
        is_bare,
    )
    failpoint("park.inserted")
    if row is None or not row["is_new"]:
        return
    if is_bare:
        PARKED_BARE.labels(unit.writer, record.topic).inc()
    await unit.emit(
        MessageParked(
            service=unit.writer,
            parked_id=row["id"],
            reason=unreadable.reason,
            detail=unreadable.detail,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            aggregate_id=unreadable.aggregate_id,
            event_id=unreadable.event_id,
            value_base64=base64.b64encode((record.value or b"")[:KEPT_VALUE_BYTES]).decode(),
            value_bytes=len(value),
            value_sha256=digest.hexdigest(),
            parked_at=unit.now,
        )
    )


async def _is_beyond_quota(conn: Connection, topic: str, kept_rows: int) -> bool:
    if not topic_named(topic).has_outside_writers:
        return False
    return bool(await conn.fetchval(IS_FULL, topic, kept_rows))


async def is_behind_parked(conn: Connection, delivery: Delivery, source: tuple[str, int]) -> bool:
    """Compare by sequence: a lost event may come again after the later ones that were parked for its absence."""
    before, envelope = source[1] if source[0] == "parked" else NO_ROW, delivery.envelope
    return bool(await conn.fetchval(IS_BEHIND, delivery.topic.name, envelope.key, before, envelope.sequence))


async def hand_over(
    database: Database, consumer: Any, parked_id: int, *, resolve: Callable[[Connection], Awaitable[None]]
) -> str:
    """Give a parked message to its handler again and return the outcome; one that fails stays, with the new reason.

    `resolve` runs in the message's transaction.
    """
    row = await database.fetchrow(FIND, parked_id)
    assert row is not None, "a parked message is handed over by its row"
    record = record_of(row)
    await database.execute(NAME_RECORD, parked_id, digest_of(record))
    delivery = read(record)
    if isinstance(delivery, Unreadable):
        return "parked"
    outcome: str = await consumer.deliver(delivery, resolve=resolve, source=("parked", parked_id))
    return outcome


class ParkedCommands:
    """Carries out ReplayParked and DropParked commands that name this service."""

    def __init__(self, service: str, database: Database, consumer: Any) -> None:
        self._service = service
        self._database = database
        self._consumer = consumer

    async def replay(self, command: ReplayParked, unit: Unit) -> None:
        if command.service == self._service:
            row = await self._open_row(unit.conn, command.parked_id)
            self._require_whole(row)
            await unit.start_task(ReplayTask(parked_id=command.parked_id))

    async def drop(self, command: DropParked, unit: Unit) -> None:
        """Skip a message for good; the event stream continues behind it."""
        if command.service != self._service:
            return
        row = await self._open_row(unit.conn, command.parked_id)
        await unit.conn.execute(RESOLVE, row["id"], "dropped")
        if row["sequence"] is None:
            await unit.conn.execute(FORGET_POSITION, row["topic"], row["aggregate_id"])
        else:
            await unit.conn.execute(SKIP_TO, row["topic"], row["aggregate_id"], row["sequence"])
        await unit.emit(
            ParkedResolved(service=self._service, parked_id=row["id"], state="dropped", reason=command.reason)
        )
        log.info("parked message dropped", parked_id=row["id"], reason=command.reason)

    async def work(self, task: ReplayTask) -> str:
        """Hand the message to its handler again; it stays parked, with the new reason, if it fails again."""

        async def resolve(conn: Connection) -> None:
            await conn.execute(RESOLVE, task.parked_id, "replayed")

        outcome = await hand_over(self._database, self._consumer, task.parked_id, resolve=resolve)
        failpoint("dlq.replayed")
        return outcome

    async def done(self, task: ReplayTask, outcome: str, unit: Unit) -> None:
        log.info("parked message replayed", parked_id=task.parked_id, outcome=outcome)
        row = await unit.conn.fetchrow(FIND, task.parked_id)
        assert row is not None, "a replay names a row that was there"
        if row["state"] == "parked":
            await self._still_parked(task, f"{row['reason']}: {row['detail']}", unit)
        elif row["state"] == "replayed":
            await unit.emit(
                ParkedResolved(service=self._service, parked_id=row["id"], state="replayed", reason=outcome)
            )

    async def failed(self, task: ReplayTask, error: Exception, unit: Unit) -> None:
        log.error("replay failed", parked_id=task.parked_id, error=str(error))
        await self._still_parked(task, f"{type(error).__name__}: {error}", unit)

    async def _still_parked(self, task: ReplayTask, why: str, unit: Unit) -> None:
        reason = f"still parked: {why}"
        await unit.emit(
            ParkedResolved(service=self._service, parked_id=task.parked_id, state="parked", reason=reason)
        )

    async def _open_row(self, conn: Connection, parked_id: int) -> Any:
        row = await conn.fetchrow(FIND, parked_id)
        if row is None or row["state"] != "parked":
            state = "no such row" if row is None else f"state {row['state']}"
            raise Refused("not_parked", f"{self._service} parked message {parked_id}: found {state}")
        return row

    def _require_whole(self, row: Any) -> None:
        where = f"{self._service} parked message {row['id']}"
        if row["reason"] == "unreadable_batch":
            raise Refused("unreadable", f"{where}: its batch could not be read ({row['detail']})")
        if row["is_cut"]:
            raise Refused("cut", f"{where}: only a part of it was kept ({row['reason']}); send it again")
