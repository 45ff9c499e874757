"""Messages set aside for a person: kept with their bytes, replayed or dropped by command, never lost.

A parked message of a story holds back every later one of the same aggregate, so that order survives.
"""

import base64
from typing import Any

from schemas.parked import DropParked, MessageParked, ParkedSettled, ReplayParked
from shared.errors import Refused
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.delivery import Delivery, Unreadable, read, storable
from shared.messaging.unit import Task, Unit
from shared.messaging.waiting import headers_to_json, record_of
from shared.postgres.database import Connection, Database

log = get_logger(__name__)

MAX_EVENT_VALUE_BYTES = 64 * 1024

INSERT = """
    INSERT INTO parked
        (topic, partition, "offset", aggregate_id, event_id, sequence, key, headers, value,
         reason, detail, blocks)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
    ON CONFLICT (topic, partition, "offset") DO UPDATE SET reason = $10, detail = $11
        WHERE parked.state = 'parked'
    RETURNING id, (xmax = 0) AS is_new"""
IS_BEHIND = """
    SELECT EXISTS (SELECT FROM parked
                    WHERE topic = $1 AND aggregate_id = $2 AND state = 'parked' AND blocks AND id < $3
                      AND (sequence IS NULL OR sequence <= $4))"""
FIND = """
    SELECT id, topic, partition, "offset", aggregate_id, event_id, sequence, key, headers, value, state,
           reason, detail
      FROM parked WHERE id = $1"""
FOLLOWERS = """
    SELECT id FROM parked
     WHERE topic = $1 AND aggregate_id = $2 AND state = 'parked' AND blocks AND reason = 'behind_parked'
     ORDER BY id LIMIT 1"""
SETTLE = "UPDATE parked SET state = $2, settled_at = clock_timestamp() WHERE id = $1 AND state = 'parked'"
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
    return Unreadable(delivery.record, reason, storable(detail), envelope.key, envelope.id, envelope.sequence)


async def park(unit: Unit, found: Unreadable, *, blocks: bool) -> None:
    """Keep the bytes and tell the world, once per place in the log."""
    record = found.record
    row = await unit.conn.fetchrow(
        INSERT,
        record.topic,
        record.partition,
        record.offset,
        found.aggregate_id,
        found.event_id,
        found.sequence,
        record.key,
        headers_to_json(record),
        record.value,
        found.reason,
        found.detail,
        blocks,
    )
    failpoint("park.inserted")
    if row is None or not row["is_new"]:
        return
    await unit.emit(
        MessageParked(
            service=unit.writer,
            parked_id=row["id"],
            reason=found.reason,
            detail=found.detail,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            aggregate_id=found.aggregate_id,
            event_id=found.event_id,
            value_base64=base64.b64encode((record.value or b"")[:MAX_EVENT_VALUE_BYTES]).decode(),
            parked_at=unit.now,
        )
    )


async def is_behind_parked(conn: Connection, delivery: Delivery, came_from: tuple[str, int]) -> bool:
    """By number: what was lost and comes again may come after what was parked because it was missing."""
    before, envelope = came_from[1] if came_from[0] == "parked" else NO_ROW, delivery.envelope
    return bool(await conn.fetchval(IS_BEHIND, delivery.topic.name, envelope.key, before, envelope.sequence))


class Desk:
    """Obeys ReplayParked and DropParked where they name this service."""

    def __init__(self, service: str, database: Database, edge: Any) -> None:
        self._service = service
        self._database = database
        self._edge = edge

    async def replay(self, command: ReplayParked, unit: Unit) -> None:
        if command.service == self._service:
            await self._open_row(unit.conn, command.parked_id)
            await unit.start_task(ReplayTask(parked_id=command.parked_id))

    async def drop(self, command: DropParked, unit: Unit) -> None:
        """Leave a message out for good; the story goes on behind it."""
        if command.service != self._service:
            return
        row = await self._open_row(unit.conn, command.parked_id)
        await unit.conn.execute(SETTLE, row["id"], "dropped")
        if row["sequence"] is None:
            await unit.conn.execute(FORGET_POSITION, row["topic"], row["aggregate_id"])
        else:
            await unit.conn.execute(SKIP_TO, row["topic"], row["aggregate_id"], row["sequence"])
        await unit.emit(
            ParkedSettled(service=self._service, parked_id=row["id"], state="dropped", reason=command.reason)
        )
        await self._start_follower(unit, row)
        log.info("parked message dropped", parked_id=row["id"], reason=command.reason)

    async def work(self, task: ReplayTask) -> str:
        """Hand the message to its handler again; it stays parked, with the new reason, if it fails again."""
        row = await self._database.fetchrow(FIND, task.parked_id)
        assert row is not None, "a replay names a row that was there"
        delivery = read(record_of(row))
        if isinstance(delivery, Unreadable):
            return "parked"

        async def settle(conn: Connection) -> None:
            await conn.execute(SETTLE, row["id"], "replayed")

        outcome: str = await self._edge.deliver(delivery, settle=settle, came_from=("parked", row["id"]))
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
                ParkedSettled(service=self._service, parked_id=row["id"], state="replayed", reason=outcome)
            )
            await self._start_follower(unit, row)

    async def failed(self, task: ReplayTask, error: Exception, unit: Unit) -> None:
        log.error("replay failed", parked_id=task.parked_id, error=str(error))
        await self._still_parked(task, f"{type(error).__name__}: {error}", unit)

    async def _still_parked(self, task: ReplayTask, why: str, unit: Unit) -> None:
        reason = f"still parked: {why}"
        await unit.emit(
            ParkedSettled(service=self._service, parked_id=task.parked_id, state="parked", reason=reason)
        )

    async def _open_row(self, conn: Connection, parked_id: int) -> Any:
        row = await conn.fetchrow(FIND, parked_id)
        if row is None or row["state"] != "parked":
            found = "no such row" if row is None else f"state {row['state']}"
            raise Refused("not_parked", f"{self._service} parked message {parked_id}: found {found}")
        return row

    async def _start_follower(self, unit: Unit, row: Any) -> None:
        """The next message of the same story, which was parked only because of this one."""
        follower = await unit.conn.fetchval(FOLLOWERS, row["topic"], row["aggregate_id"])
        if follower is not None:
            await unit.start_task(ReplayTask(parked_id=follower))
