"""The unit of work, one transaction per message: all that a handler may read, write and emit."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from pydantic import BaseModel

from schemas.base import Message
from schemas.envelope import MAX_COMMAND_BYTES, MAX_FACT_BYTES, Envelope, Origin, to_headers
from schemas.topics import Topic, topic_of
from shared.errors import ParentUnknown, TooLarge
from shared.failpoints import failpoint
from shared.messaging.delivery import Delivery
from shared.postgres.database import Connection
from shared.record import Record
from shared.telemetry.tracing import current_traceparent, span

# The counter's row lock is held until commit, so the next number of an event stream cannot be given before this
# one is visible: the relay, which reads by id, can neither skip nor swap two events of an aggregate.
INSERT_OUTBOX = """
    WITH taken AS (
        INSERT INTO sequence AS s (topic, aggregate_id, last) VALUES ($2, $3, 1)
        ON CONFLICT (topic, aggregate_id) DO UPDATE SET last = s.last + 1 RETURNING last),
    written AS (
        INSERT INTO outbox (event_id, topic, aggregate_id, sequence, type, headers, value)
        SELECT $1, $2, $3, taken.last, $4, $5, $6 FROM taken RETURNING id)
    INSERT INTO unpublished SELECT id FROM written"""

INSERT_TIMER = """
    INSERT INTO timer (type, payload, fires_at, traceparent, correlation_id) VALUES ($1, $2, $3, $4, $5)"""

INSERT_TASK = """
    INSERT INTO task (kind, key, tenant, payload, traceparent, correlation_id) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (kind, key) DO UPDATE SET tenant = $3, payload = $4, traceparent = $5, correlation_id = $6,
                                          failures = 0, away_since = NULL, set_aside_at = NULL
        WHERE task.set_aside_at IS NOT NULL"""

CANCEL_TASK = "DELETE FROM task WHERE kind = $1 AND key = $2"

RELEASE_WAITING = "UPDATE waiting SET released = true WHERE parent = ANY($1) AND NOT released"
IS_BEHIND_WAITING = """
    SELECT EXISTS (SELECT FROM waiting WHERE topic = $1 AND aggregate_id = $2 AND parent = $3
                                         AND partition = $4 AND "offset" < $5)"""


def require_size(topic: Topic, message_type: str, headers: Mapping[str, str], value: bytes) -> None:
    """Raise TooLarge over the limit, so that all readers can read the message and those that follow from it."""
    limit = MAX_COMMAND_BYTES if topic.is_commands else MAX_FACT_BYTES
    size = len(value) + sum(len(name) + len(text.encode()) for name, text in headers.items())
    if size > limit:
        raise TooLarge(f"{message_type} on {topic.name}: found {size} bytes", limit=limit)


class Task(BaseModel, frozen=True):
    """Base class of a leased task's payload. Equal keys of one kind are one task."""

    tenant: str = ""
    """Tenant of the task. Tenants' tasks of one kind are done in turn; those without one count as one tenant's."""

    @property
    def key(self) -> str:
        raise NotImplementedError


OutboxRow = tuple[str, str, str, str, Mapping[str, str], bytes]
"""Event id, topic, aggregate id, type, headers and value."""
TimerRow = tuple[str, Any, datetime, str, str]
"""Type, payload, time, traceparent and correlation id."""
Afterwards = Callable[["Unit"], Awaitable[bool]]
"""A function that ends a transaction; it returns whether there may be more for it to do."""


class Shared:
    """What the messages have in common that share a transaction: all that they leave for its end."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries = deliveries
        """Those that may be handled in it, in this order."""
        self.memory: dict[Any, Any] = {}
        """What handlers keep until its end, such as rows that they have locked."""
        self.outbox: list[OutboxRow] = []
        self.timers: list[TimerRow] = []
        self.released: list[str] = []
        """Parents whose children are to be tried again."""
        self._writes: list[Callable[[], Awaitable[None]]] = []
        self._asked: dict[Afterwards, list[Unit]] = {}

    def before_end(self, write: Callable[[], Awaitable[None]]) -> None:
        """Have `write` called after the last message, before anything else is done at the end."""
        self._writes.append(write)

    def add(self, function: Afterwards, unit: "Unit") -> None:
        self._asked.setdefault(function, []).append(unit)

    async def end(self, conn: Connection) -> None:
        """Write all that was left; then call each function as often as it was asked for, or until it has nothing more
        to do.

        It gets the unit of the message that asked last.
        """
        for write in self._writes:
            await write()
        await insert_outbox(conn, self.outbox)
        if self.timers:
            await conn.executemany(INSERT_TIMER, self.timers)
        if self.released:
            await conn.execute(RELEASE_WAITING, self.released)
        for function, units in self._asked.items():
            unit = units[-1]
            with span(
                f"{unit.topic} process", traceparent=unit.envelope.traceparent if unit.envelope else ""
            ):
                for _ in units:
                    if not await _call(function, unit):
                        break


async def _call(function: Afterwards, unit: "Unit") -> bool:
    """Call the function, and write what it leaves for the end."""
    shared = Shared([])
    its_own = replace(unit, shared=shared, outgoing=0)
    is_more = await function(its_own)
    await shared.end(unit.conn)
    unit.outgoing += its_own.outgoing
    return is_more


async def insert_outbox(conn: Connection, rows: Sequence[OutboxRow]) -> None:
    if rows:
        await conn.executemany(INSERT_OUTBOX, rows)
        failpoint("outbox.inserted")


_CORRELATION: ContextVar[str] = ContextVar("correlation", default="")


@contextmanager
def correlated(correlation_id: str) -> Iterator[None]:
    """Have transactions that the block opens belong to this request."""
    token = _CORRELATION.set(correlation_id)
    try:
        yield
    finally:
        _CORRELATION.reset(token)


def current_correlation() -> str:
    """Return the id of the request whose work is done; empty outside any."""
    return _CORRELATION.get()


@dataclass
class Unit:
    conn: Connection
    writer: str
    """Name of the service that emits."""
    now: datetime
    envelope: Envelope | None = None
    """Envelope of the message that is handled; None in timers, tasks and loops."""
    topic: str = ""
    correlation_id: str = ""
    record: Record | None = None
    """Record of the message that is handled, as it was received."""
    outgoing: int = 0
    """Number of rows for which the loops of the process should be woken after the commit."""
    shared: Shared | None = None
    """What the messages have in common that share the transaction; None where there is one alone, or none."""

    @property
    def origin(self) -> Origin:
        return Origin(self.correlation_id, current_traceparent())

    async def emit(self, *messages: Message, origin: Origin | None = None) -> list[str]:
        """Put the messages in the outbox and return their event ids. Topic and key follow from the message.

        origin: what they belong to; None: what is being handled. Raises TooLarge if some listener could not read one.
        """
        origin = origin or self.origin
        rows: list[OutboxRow] = []
        for message in messages:
            event_id = uuid4().hex
            topic = topic_of(type(message), writer=self.writer)
            headers, value = self._headers(message, event_id, origin), message.model_dump_json().encode()
            require_size(topic, message.type, headers, value)
            rows.append((event_id, topic.name, message.key, message.type, headers, value))
        await self._put_out(rows)
        return [event_id for event_id, *_ in rows]

    async def afterwards(self, function: Afterwards) -> None:
        """Call the function with this unit: at once, or after the last message that shares the transaction."""
        if self.shared is None:
            await _call(function, self)
        else:
            self.shared.add(function, self)

    async def copy_to(self, topic: Topic) -> None:
        """Put the handled fact in the outbox for another topic with its id, source, time and payload unchanged.

        Its sequence is the next of the event stream there.
        """
        assert self.envelope is not None, "a fact comes with an envelope"
        assert self.record is not None, "a fact comes as a record"
        envelope = replace(self.envelope, sequence=None)
        headers = {name: value.decode() for name, value in to_headers(envelope)}
        value = self.record.value or b""
        await self._put_out([(envelope.id, topic.name, envelope.key, envelope.type, headers, value)])

    async def _put_out(self, rows: Sequence[OutboxRow]) -> None:
        if self.shared is None:
            await insert_outbox(self.conn, rows)
        else:
            self.shared.outbox += rows
        self.outgoing += len(rows)

    async def set_timer(self, payload: BaseModel, *, at: datetime) -> None:
        """Hand `payload` to its timer handler at that time or soon after. A timer cannot be cancelled."""
        timer = (
            type(payload).__name__,
            payload.model_dump(mode="json"),
            at,
            current_traceparent(),
            self.correlation_id,
        )
        if self.shared is None:
            await self.conn.execute(INSERT_TIMER, *timer)
        else:
            self.shared.timers.append(timer)

    async def start_task(self, task: Task) -> None:
        """Have the task done after this commit; one that is under way already is left as it is.

        One that was set aside starts again.
        """
        await self.conn.execute(
            INSERT_TASK,
            type(task).__name__,
            task.key,
            task.tenant,
            task.model_dump(mode="json"),
            current_traceparent(),
            self.correlation_id,
        )
        self.outgoing += 1

    async def cancel_task(self, kind: type[Task], key: str) -> None:
        """Cancel the task; its worker stops when it tries to renew the lease.

        Call it before reading rows that the task writes at its end: the end locks the task first, too.
        """
        await self.conn.execute(CANCEL_TASK, kind.__name__, key)

    async def release(self, parent: str) -> None:
        """Let the messages that wait for this parent be tried again."""
        if self.shared is None:
            await self.conn.execute(RELEASE_WAITING, [parent])
        else:
            self.shared.released.append(parent)
        self.outgoing += 1

    async def keep_order(self, parent: str) -> None:
        """Raise ParentUnknown while a message of the same key that came before this one still waits for this parent.

        It may do so a moment longer than the parent is unknown. Event streams keep their order without it.
        """
        assert self.envelope is not None, "it is a message's turn"
        assert self.record is not None, "a message comes as a record"
        place = self.topic, self.envelope.key, parent, self.record.partition, self.record.offset
        if await self.conn.fetchval(IS_BEHIND_WAITING, *place):
            raise ParentUnknown(parent)

    def _headers(self, message: Message, event_id: str, origin: Origin) -> dict[str, str]:
        """Return all headers but `ce_sequence`, which the relay adds from the row."""
        envelope = Envelope(
            id=event_id,
            type=message.type,
            version=message.version,
            source=f"/retune/{self.writer}",
            time=self.now,
            key=message.key,
            correlation_id=origin.correlation_id or event_id,
            causation_id=self.envelope.id if self.envelope else "",
            traceparent=origin.traceparent,
        )
        return {name: value.decode() for name, value in to_headers(envelope)}
