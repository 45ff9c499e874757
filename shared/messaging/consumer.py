"""The consume edge: inbox, handler and outbox in one transaction; then, and only then, the offset.

A record ends as `applied`, `duplicate`, `ignored`, `refused`, `waiting` or `parked`. Nothing escapes: what
cannot be decided for now is tried again, and a dependency that stays away ends the process.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from schemas.base import CommandRefused, Message
from shared.clock import utc_now
from shared.errors import ParentUnknown, Refused, Rejected
from shared.failpoints import failpoint
from shared.log import get_logger, log_context
from shared.messaging import parking, waiting
from shared.messaging.delivery import Delivery, Record, Unreadable, read
from shared.messaging.unit import Unit
from shared.postgres.database import CONTENDED, Connection, Database, is_unavailable, is_unstorable
from shared.telemetry.metrics import HANDLED, HANDLER_SECONDS, PARKED
from shared.telemetry.tracing import span

log = get_logger(__name__)

Handler = Callable[[Any, Unit], Awaitable[None]]
Settle = Callable[[Connection], Awaitable[None]]
"""Runs in the message's transaction: takes it from the table that it came from."""

MAX_ATTEMPTS = 8
FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0
MAX_AWAY_SECONDS = 60.0
MAX_PARKED_IN_A_ROW = 20

INSERT_INBOX = """
    INSERT INTO inbox (consumer, topic, event_id, payload_sha256) VALUES ($1, $2, $3, $4)
    ON CONFLICT DO NOTHING RETURNING true"""
FIND_INBOX = "SELECT payload_sha256 FROM inbox WHERE consumer = $1 AND topic = $2 AND event_id = $3"
FIND_POSITION = "SELECT sequence FROM position WHERE topic = $1 AND aggregate_id = $2"
# A member that has lost the partition may come late with a number that the new one is past.
SAVE_POSITION = """
    INSERT INTO position (topic, aggregate_id, sequence) VALUES ($1, $2, $3)
    ON CONFLICT (topic, aggregate_id) DO UPDATE SET sequence = greatest(position.sequence, $3)"""


class DependencyAway(Exception):
    """Postgres stayed away too long; the process ends and is started again."""


class TooManyParked(Exception):
    """Handler after handler fails: the fault is ours, so stop instead of parking the whole topic."""


class _Duplicate(Exception):
    """Applied before: nothing is done."""


class _ParkThis(Exception):
    def __init__(self, reason: str, detail: str, *, blocks: bool = True) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.blocks = blocks


class Edge:
    """Hands each record of the log to its handler exactly once in effect."""

    def __init__(self, service: str, database: Database, *, poke: Callable[[], None]) -> None:
        self._service = service
        self._database = database
        self._poke = poke
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._parked_in_a_row = 0

    def on(self, topic: str, message: type[Message], handler: Handler) -> None:
        """Register the handler of a type on a topic, or on all topics of a family: `tenant.*.commands`."""
        if (topic, message.type) in self._handlers:
            raise ValueError(f"{self._service}: two handlers of {message.type} on {topic}")
        self._handlers[topic, message.type] = handler

    async def consume(self, record: Record) -> str:
        """Bring a record of the log to its end; the outcome."""
        delivery = read(record)
        failpoint("consume.decoded")
        if isinstance(delivery, Unreadable):
            outcome = await self._persistently(partial(self._park_unreadable, delivery))
        else:
            outcome = await self.deliver(delivery)
        HANDLED.labels(self._service, record.topic, outcome).inc()
        return outcome

    async def deliver(
        self, delivery: Delivery, *, settle: Settle | None = None, came_from: tuple[str, int] = ("log", 0)
    ) -> str:
        """Apply, refuse, let wait or park. `came_from`: the table and row id that it was kept in."""
        began, envelope = time.monotonic(), delivery.envelope
        try:
            with (
                log_context(event_id=envelope.id, key=envelope.key),
                span(f"{delivery.topic.name} process", traceparent=envelope.traceparent),
            ):
                return await self._decide(delivery, settle, came_from)
        finally:
            HANDLER_SECONDS.labels(self._service, delivery.message.type).observe(time.monotonic() - began)

    async def _decide(self, delivery: Delivery, settle: Settle | None, came_from: tuple[str, int]) -> str:
        try:
            return await self._persistently(partial(self._apply, delivery, settle, came_from))
        except _Duplicate:
            await self._settle(settle)
            return "duplicate"
        except _ParkThis as end:
            # A replayed message that fails again keeps its row.
            leave = None if came_from[0] == "parked" else settle
            return await self._persistently(partial(self._park, delivery, end, leave))
        except Refused as refused:
            return await self._persistently(partial(self._refuse, delivery, refused, settle))
        except ParentUnknown as unknown:
            return await self._persistently(partial(self._wait, delivery, unknown, settle, came_from))

    async def _persistently(self, attempt: Callable[[], Awaitable[str]]) -> str:
        """Try until it is decided: failures are bounded by number, an absent Postgres by time."""
        failures, away_since = 0, 0.0
        while True:
            try:
                return await attempt()
            except (_Duplicate, _ParkThis, Refused, ParentUnknown, TooManyParked):
                raise
            except Rejected as error:
                raise _ParkThis("rejected", str(error)) from error
            except Exception as error:
                if is_unstorable(error):
                    raise _ParkThis("rejected", f"{type(error).__name__}: {error}") from error
                if is_unavailable(error):
                    away_since = away_since or time.monotonic()
                    _give_up_on_postgres(error, away_since)
                else:
                    failures, away_since = failures + 1, 0.0
                    _give_up_on_handler(error, failures)
            await asyncio.sleep(_backoff(failures))

    async def _apply(self, delivery: Delivery, settle: Settle | None, came_from: tuple[str, int]) -> str:
        async with self._database.transaction() as conn:
            failpoint("tx.begun")
            await self._admit(conn, delivery, came_from)
            unit = self._unit(conn, delivery)
            outcome = await self._handle(delivery, unit)
            if delivery.topic.is_story:
                envelope = delivery.envelope
                await conn.execute(SAVE_POSITION, delivery.topic.name, envelope.key, envelope.sequence)
            if settle is not None:
                await settle(conn)
            failpoint("db.commit.before")
        failpoint("db.commit.after")
        self._parked_in_a_row = 0
        if unit.outgoing:
            self._poke()
        return outcome

    async def _admit(self, conn: Connection, delivery: Delivery, came_from: tuple[str, int]) -> None:
        """Raise unless this message is the next of its story and was not applied before."""
        envelope, topic = delivery.envelope, delivery.topic
        applied = await conn.fetchval(FIND_INBOX, self._service, topic.name, envelope.id)
        if applied is not None:
            if applied != _payload_digest(delivery.record):
                detail = f"event {envelope.id} was applied before with another payload"
                raise _ParkThis("other_payload", detail, blocks=False)
            raise _Duplicate
        if not topic.is_story:
            return
        last = await conn.fetchval(FIND_POSITION, topic.name, envelope.key)
        if last is not None and envelope.sequence is not None and envelope.sequence <= last:
            raise _Duplicate
        if await parking.is_behind_parked(conn, delivery, came_from):
            raise _ParkThis("behind_parked", f"an earlier message of {envelope.key} is parked")
        if await waiting.is_behind_waiting(conn, delivery, came_from):
            raise ParentUnknown(waiting.BEHIND)
        if last is not None and envelope.sequence != last + 1:
            raise _ParkThis("gap", f"found sequence {envelope.sequence}, expected {last + 1}")

    async def _handle(self, delivery: Delivery, unit: Unit) -> str:
        handler = self._find_handler(delivery)
        if handler is None:
            return "ignored"
        if not await self._insert_inbox(unit.conn, delivery):
            raise _Duplicate
        failpoint("inbox.inserted")
        await self._call(handler, delivery, unit)
        failpoint("state.written")
        return "applied"

    async def _call(self, handler: Handler, delivery: Delivery, unit: Unit) -> None:
        try:
            await handler(delivery.message, unit)
        except Refused as refused:
            if delivery.topic.is_commands:
                raise
            raise Rejected(f"{refused.code}: {refused.message}") from refused

    def _find_handler(self, delivery: Delivery) -> Handler | None:
        family = "tenant.*.commands" if delivery.topic.name.startswith("tenant.") else delivery.topic.name
        for topic in (delivery.topic.name, family):
            if handler := self._handlers.get((topic, delivery.message.type)):
                return handler
        return None

    async def _insert_inbox(self, conn: Connection, delivery: Delivery) -> bool:
        digest = _payload_digest(delivery.record)
        return bool(
            await conn.fetchval(
                INSERT_INBOX, self._service, delivery.topic.name, delivery.envelope.id, digest
            )
        )

    def _unit(self, conn: Connection, delivery: Delivery) -> Unit:
        envelope = delivery.envelope
        correlation = envelope.correlation_id or envelope.id
        return Unit(conn, self._service, utc_now(), envelope, delivery.topic.name, correlation)

    async def _refuse(self, delivery: Delivery, refused: Refused, settle: Settle | None) -> str:
        async with self._database.transaction() as conn:
            if not await self._insert_inbox(conn, delivery):
                # Said before: by a member that the partition went to, or in a commit whose answer was lost.
                if settle is not None:
                    await settle(conn)
                return "duplicate"
            unit = self._unit(conn, delivery)
            await unit.emit(
                CommandRefused(
                    subject_id=refused.subject_id or delivery.envelope.key,
                    command=delivery.message.type,
                    command_id=delivery.envelope.id,
                    code=refused.code,
                    message=refused.message,
                    param=refused.param,
                    tenant=delivery.topic.tenant or getattr(delivery.message, "tenant", None),
                )
            )
            if settle is not None:
                await settle(conn)
        self._poke()
        return "refused"

    async def _wait(
        self, delivery: Delivery, unknown: ParentUnknown, settle: Settle | None, came_from: tuple[str, int]
    ) -> str:
        if came_from[0] == "waiting":
            return await self._keep_waiting(delivery, unknown, settle, came_from[1])
        async with self._database.transaction() as conn:
            await waiting.add(conn, delivery, unknown, now=utc_now())
            if settle is not None:
                await settle(conn)
        return "waiting"

    async def _keep_waiting(
        self, delivery: Delivery, unknown: ParentUnknown, settle: Settle | None, row_id: int
    ) -> str:
        if not await waiting.is_expired(self._database, row_id, now=utc_now()):
            return "waiting"
        if not delivery.topic.is_commands:
            return await self._park(delivery, _ParkThis("parent_unknown", str(unknown)), settle)
        refused = Refused("unknown_parent", f"{unknown.parent} is not known after the time limit")
        return await self._refuse(delivery, refused, settle)

    async def _park(self, delivery: Delivery, end: _ParkThis, settle: Settle | None) -> str:
        if end.reason == "failed":
            self._parked_in_a_row += 1
            if self._parked_in_a_row > MAX_PARKED_IN_A_ROW:
                raise TooManyParked(f"{self._parked_in_a_row} messages in a row failed: {end.detail}")
        blocks = end.blocks and delivery.topic.is_story
        unreadable = parking.from_delivery(delivery, end.reason, end.detail)
        return await self._store_parked(unreadable, blocks=blocks, settle=settle)

    async def _park_unreadable(self, unreadable: Unreadable) -> str:
        blocks = unreadable.record.topic.endswith(".events")
        return await self._store_parked(unreadable, blocks=blocks, settle=None)

    async def _store_parked(self, unreadable: Unreadable, *, blocks: bool, settle: Settle | None) -> str:
        async with self._database.transaction() as conn:
            unit = Unit(conn, self._service, utc_now())
            await parking.park(unit, unreadable, blocks=blocks)
            if settle is not None:
                await settle(conn)
            failpoint("park.inserted")
        log.warning(
            "message parked",
            event_id=unreadable.event_id,
            place=unreadable.record.place,
            reason=unreadable.reason,
            detail=unreadable.detail,
        )
        PARKED.labels(self._service, unreadable.record.topic, unreadable.reason).inc()
        self._poke()
        return "parked"

    async def _settle(self, settle: Settle | None) -> None:
        if settle is not None:
            async with self._database.transaction() as conn:
                await settle(conn)


def _payload_digest(record: Record) -> bytes:
    return hashlib.sha256(record.value or b"").digest()


def _give_up_on_postgres(error: Exception, away_since: float) -> None:
    log.warning("database is away", error=f"{type(error).__name__}: {error}")
    if time.monotonic() - away_since > MAX_AWAY_SECONDS:
        raise DependencyAway(f"Postgres did not answer for {MAX_AWAY_SECONDS:g} s: {error}") from error


def _give_up_on_handler(error: Exception, failures: int) -> None:
    log.warning("handler failed", attempt=failures, exc_info=not isinstance(error, CONTENDED))
    if failures >= MAX_ATTEMPTS:
        raise _ParkThis("failed", f"{type(error).__name__}: {error}") from error


def _backoff(failures: int) -> float:
    longest = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0**failures)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311
