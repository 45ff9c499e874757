"""The consumer: inbox, handler and outbox in one transaction; then, and only then, the offset.

Records that were fetched together share a transaction; one that is out of the ordinary gets its own. A record
ends as `applied`, `duplicate`, `ignored`, `refused`, `waiting` or `parked`. The consumer itself waits only for
Postgres: a message whose handler fails is tried again from its row in `waiting`, while others continue.
"""

import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from schemas.base import Message
from schemas.topics import OF_EVERY_TENANT
from shared.errors import ParentUnknown, Refused, Rejected
from shared.failpoints import failpoint
from shared.log import get_logger, log_context
from shared.messaging import parking, waiting
from shared.messaging.delivery import Delivery, Unreadable, read, refusal_of, require_obeyed
from shared.messaging.inbox import Inbox, entry_of, insert, payload_digest
from shared.messaging.unit import Shared, Unit
from shared.postgres.database import Connection, Database, is_unstorable
from shared.postgres.outage import Overdue, retry_through_outage
from shared.record import Record
from shared.retry import RetryPolicy
from shared.telemetry.metrics import HANDLED, HANDLER_SECONDS, PARKED
from shared.telemetry.tracing import span

log = get_logger(__name__)

Handler = Callable[[Any, Unit], Awaitable[None]]
Resolve = Callable[[Connection], Awaitable[None]]
"""A function that deletes or marks the row that the message came from, in the message's transaction."""

MAX_ATTEMPTS = 8
TRIES_AT_ONCE = 2
"""Number of attempts without a pause: a conflict of two concurrent writers seldom happens twice."""
FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0
POSTGRES = RetryPolicy(
    limit=timedelta(seconds=60),
    shortest=timedelta(seconds=0.1),
    longest=timedelta(seconds=MAX_BACKOFF_SECONDS),
)
"""An outage of Postgres is waited out without a limit; the limit here is for work that is late although it is up."""
MAX_PARKED_IN_A_ROW = 20
TOGETHER_SECONDS = 0.1
"""Time after which a shared transaction takes no further record, because others may wait for its locks."""
LOG = ("log", 0)
"""The source of a message that comes from Kafka and not from a table."""

# A shared transaction holds the locks of several messages, taken in the order of the log, so waiting for locks in it
# can deadlock. Alone, each message takes its locks in the order that its service keeps.
WAIT_FOR_NOBODY = "SET LOCAL lock_timeout = '50ms'"


class TooManyParked(Exception):
    """Handler after handler fails, so the fault is ours: stop instead of parking the whole topic."""


class _Duplicate(Exception):
    """The message was applied before, so nothing is done."""


@dataclass(frozen=True)
class _Outcome:
    outcome: str
    parked: Unreadable | None = None


class _MustPark(Exception):
    def __init__(self, reason: str, detail: str, *, blocks: bool = True) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.blocks = blocks


class _Failed(Exception):
    """The handler failed with an error that may be gone at the next attempt."""

    def __init__(self, detail: str, *, times: int = TRIES_AT_ONCE, pause: timedelta = timedelta(0)) -> None:
        super().__init__(detail)
        self.times = times
        self.pause = pause


async def _always() -> bool:
    return True


class Consumer:
    """Hands each record of the log to its handler exactly once in effect."""

    def __init__(
        self,
        service: str,
        database: Database,
        *,
        wake: Callable[[], None],
        has_read_all: Callable[[], Awaitable[bool]] = _always,
        kept_rows: int = parking.KEPT_ROWS,
    ) -> None:
        """Make a consumer that has no handlers yet.

        `has_read_all` returns whether all records that the log has at the call are applied soon. `kept_rows` is the
        number of parked records that keep their bytes, for each topic that tenants or nodes write.
        """
        self._service = service
        self._database = database
        self._wake = wake
        self._has_read_all = has_read_all
        self._kept_rows = kept_rows
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._parked_in_a_row = 0

    def on(self, topic: str, message: type[Message], handler: Handler) -> None:
        """Register the handler of a type on a topic, or on all topics that OF_EVERY_TENANT means."""
        if (topic, message.type) in self._handlers:
            raise ValueError(f"{self._service}: two handlers of {message.type} on {topic}")
        self._handlers[topic, message.type] = handler

    async def consume_all(self, records: Sequence[Record]) -> None:
        """Process records of the log to their outcomes, in this order."""
        left = [_read(record) for record in records]
        while left:
            together = await self._consume_together(left)
            if not together:
                await self._consume(left[0])
            del left[: together or 1]

    async def consume(self, record: Record) -> str:
        """Process a record of the log and return its outcome."""
        return await self._consume(_read(record))

    async def _consume(self, entry: Delivery | Unreadable) -> str:
        if isinstance(entry, Unreadable):
            outcome = await self._wait_for_postgres(partial(self._park_unreadable, entry))
        else:
            outcome = await self.deliver(entry)
        HANDLED.labels(self._service, entry.record.topic, outcome).inc()
        return outcome

    async def deliver(
        self, delivery: Delivery, *, resolve: Resolve | None = None, source: tuple[str, int] = LOG
    ) -> str:
        """Apply, refuse or park the message, or let it wait. `source` is the table and row id that it was kept in."""
        with self._observed(delivery):
            return await self._decide(delivery, resolve, source)

    @contextmanager
    def _observed(self, delivery: Delivery) -> Iterator[None]:
        began, envelope = time.monotonic(), delivery.envelope
        try:
            with (
                log_context(event_id=envelope.id, key=envelope.key),
                span(f"{delivery.topic.name} process", traceparent=envelope.traceparent),
            ):
                yield
        finally:
            HANDLER_SECONDS.labels(self._service, delivery.message.type).observe(time.monotonic() - began)

    async def _consume_together(self, entries: Sequence[Delivery | Unreadable]) -> int:
        """Process in one transaction the records before the first that needs its own; return how many they are."""
        ends: list[_Outcome] = []
        while len(entries) > 1:
            try:
                if await self._commit_together(entries, ends):
                    self._wake()
                break
            except Exception as error:
                log.info("not together", records=len(entries), because=f"{type(error).__name__}: {error}")
                entries, ends = entries[: min(len(ends), len(entries) - 1)], []
        for each, end in zip(entries, ends, strict=False):
            if end.parked:
                self._report_parked(end.parked)
            else:
                self._parked_in_a_row = 0
            HANDLED.labels(self._service, each.record.topic, end.outcome).inc()
        return len(ends)

    async def _commit_together(self, entries: Sequence[Delivery | Unreadable], ends: list[_Outcome]) -> bool:
        """Add outcomes to `ends` one by one and commit them; an error is that of the record after the last of them.

        Returns whether the loops of the process should be woken for new rows.
        """
        units: list[Unit] = []
        deliveries = [each for each in entries if isinstance(each, Delivery)]
        async with self._database.transaction() as conn:
            failpoint("tx.begun")
            await conn.execute(WAIT_FOR_NOBODY)
            began = time.monotonic()
            inbox = await self._inbox(conn, deliveries, at_end=True)
            shared = Shared([each for each in deliveries if self._find_handler(each)])
            for each in entries:
                if isinstance(each, Unreadable):
                    unit = Unit(conn, self._service, self._database.now(), shared=shared)
                    await self._keep(unit, each, blocks=each.blocks)
                    inbox.hold(each.record.topic, each.aggregate_id)
                    ends.append(_Outcome("parked", each))
                else:
                    unit = replace(self._unit(conn, each), shared=shared)
                    with self._observed(each):
                        ends.append(await self._apply_once(each, unit, inbox))
                units.append(unit)
                if time.monotonic() - began > TOGETHER_SECONDS:
                    break
            try:
                await inbox.end()
                failpoint("inbox.inserted")
                await shared.end(conn)
            except Exception:
                del ends[len(ends) // 2 :]  # it may be the fault of any of them
                raise
            failpoint("db.commit.before")
        failpoint("db.commit.after")
        return any(unit.outgoing for unit in units)

    async def _apply_once(self, delivery: Delivery, unit: Unit, inbox: Inbox) -> _Outcome:
        """Apply the message; if it is not admitted, it has written nothing and the shared transaction continues."""
        try:
            return _Outcome(await self._apply_in(unit, delivery, LOG, inbox))
        except _Duplicate:
            return _Outcome("duplicate")
        except _MustPark as end:
            unreadable = parking.from_delivery(delivery, end.reason, end.detail)
            if blocks := end.blocks and delivery.topic.is_event_stream:
                inbox.hold(delivery.topic.name, delivery.envelope.key)
            await self._keep(unit, unreadable, blocks=blocks)
            return _Outcome("parked", unreadable)

    async def _decide(
        self, delivery: Delivery, resolve: Resolve | None, source: tuple[str, int], *, is_last: bool = False
    ) -> str:
        # A replayed message that fails again keeps its row.
        leave = None if source[0] == "parked" else resolve
        try:
            return await self._try_now(partial(self._apply, delivery, resolve, source), source[0])
        except _Duplicate:
            await self._resolve(resolve)
            return "duplicate"
        except _MustPark as end:
            return await self._wait_for_postgres(partial(self._park, delivery, end, leave))
        except Refused as refused:
            return await self._wait_for_postgres(partial(self._refuse, delivery, refused, resolve))
        except ParentUnknown as unknown:
            if is_last:
                return await self._wait_for_postgres(partial(self._stop_waiting, delivery, unknown, resolve))
            return await self._wait_for_postgres(partial(self._wait, delivery, unknown, resolve, source))
        except _Failed as failed:
            return await self._wait_for_postgres(partial(self._try_later, delivery, failed, leave, source))

    async def _try_now(self, apply: Callable[[], Awaitable[str]], table: str) -> str:
        """Try the message without a pause. Raises _Failed if the handler fails each time or does not end in time."""
        # Other rows of `waiting` have their turn behind this one: it tries once, and the minute passes in its row.
        retry_policy = replace(POSTGRES, limit=timedelta(0)) if table == "waiting" else POSTGRES
        for number in range(1, TRIES_AT_ONCE + 1):
            try:
                return await retry_through_outage(apply, self._database, retry_policy=retry_policy)
            except (_Duplicate, _MustPark, Refused, ParentUnknown):
                raise
            except Overdue as error:
                log.warning("handler is overdue", exc_info=error)
                raise _Failed(str(error), times=1, pause=POSTGRES.limit) from error
            except Rejected as error:
                raise _MustPark("rejected", str(error)) from error
            except Exception as error:
                if is_unstorable(error):
                    raise _MustPark("rejected", f"{type(error).__name__}: {error}") from error
                log.warning("handler failed", attempt=number, exc_info=error)
                last = error
        raise _Failed(f"{type(last).__name__}: {last}") from last

    async def _wait_for_postgres(self, attempt: Callable[[], Awaitable[str]]) -> str:
        """Retry through an outage of Postgres. Raises Overdue, ending the process, if it is late without one."""
        return await retry_through_outage(attempt, self._database, retry_policy=POSTGRES)

    async def _try_later(
        self, delivery: Delivery, failed: "_Failed", leave: Resolve | None, source: tuple[str, int]
    ) -> str:
        table, row_id = source
        before = await waiting.failures_of(self._database, row_id) if table == "waiting" else 0
        failures = before + failed.times
        if table == "parked" or failures >= MAX_ATTEMPTS:
            return await self._park(delivery, _MustPark("failed", str(failed)), leave)
        pause = max(failed.pause, timedelta(seconds=_backoff(failures)))
        if table == "waiting":
            await self._database.execute(waiting.FAILED_AGAIN, row_id, failures, pause)
            return "waiting"
        async with self._database.transaction() as conn:
            await waiting.add_failed(conn, delivery, failures=failures, pause=pause)
        return "waiting"

    async def _apply(self, delivery: Delivery, resolve: Resolve | None, source: tuple[str, int]) -> str:
        async with self._database.transaction() as conn:
            failpoint("tx.begun")
            unit = self._unit(conn, delivery)
            inbox = await self._inbox(conn, [delivery])
            outcome = await self._apply_in(unit, delivery, source, inbox)
            if resolve is not None:
                await resolve(conn)
            failpoint("db.commit.before")
        failpoint("db.commit.after")
        self._parked_in_a_row = 0
        if unit.outgoing:
            self._wake()
        return outcome

    async def _inbox(
        self, conn: Connection, deliveries: Sequence[Delivery], *, at_end: bool = False
    ) -> Inbox:
        inbox = Inbox(conn, self._service, at_end=at_end)
        await inbox.read(deliveries)
        return inbox

    async def _apply_in(self, unit: Unit, delivery: Delivery, source: tuple[str, int], inbox: Inbox) -> str:
        """Apply the message in the unit's transaction. Raises _Duplicate before anything is written."""
        await self._admit(unit.conn, delivery, source, inbox)
        if handler := self._find_handler(delivery):
            await self._handle(handler, delivery, unit, inbox)
            return "applied"
        if delivery.topic.is_event_stream:
            await inbox.enter(entry_of(delivery, is_handled=False))
        return "ignored"

    async def _admit(
        self, conn: Connection, delivery: Delivery, source: tuple[str, int], inbox: Inbox
    ) -> None:
        """Raise unless this message is the next of its event stream and was not applied before."""
        envelope, topic, stream = delivery.envelope, delivery.topic, inbox.stream(delivery)
        if (applied := inbox.applied(delivery)) is not None:
            if applied != payload_digest(delivery.record):
                detail = f"event {envelope.id} was applied before with another payload"
                raise _MustPark("other_payload", detail, blocks=False)
            raise _Duplicate
        if not topic.is_event_stream:
            # A command must not overtake the one before it because that one failed for a moment.
            if stream.is_behind_failed and await waiting.is_behind_waiting(conn, delivery, source):
                raise ParentUnknown(waiting.BEHIND)
            return
        last = stream.last
        if last is not None and envelope.sequence is not None and envelope.sequence <= last:
            if self._find_handler(delivery) is None:
                raise _Duplicate
            detail = (
                f"sequence {envelope.sequence} was read before, and no event {envelope.id} is in the inbox"
            )
            raise _MustPark("other_event", detail, blocks=False)
        if stream.is_held:
            await self._require_turn(conn, delivery, source)
        if last is not None and envelope.sequence != last + 1:
            raise _MustPark("gap", f"found sequence {envelope.sequence}, expected {last + 1}")

    async def _require_turn(self, conn: Connection, delivery: Delivery, source: tuple[str, int]) -> None:
        if await parking.is_behind_parked(conn, delivery, source):
            raise _MustPark("behind_parked", f"an earlier message of {delivery.envelope.key} is parked")
        if await waiting.is_behind_waiting(conn, delivery, source):
            raise ParentUnknown(waiting.BEHIND)

    async def _handle(self, handler: Handler, delivery: Delivery, unit: Unit, inbox: Inbox) -> None:
        require_obeyed(delivery, now=unit.now)
        if not await inbox.enter(entry_of(delivery, is_handled=True)):
            raise _Duplicate
        if unit.shared is None:
            failpoint("inbox.inserted")
        try:
            await handler(delivery.message, unit)
        except Refused as refused:
            if delivery.topic.is_commands:
                raise
            raise Rejected(f"{refused.code}: {refused.message}") from refused
        failpoint("state.written")

    def _find_handler(self, delivery: Delivery) -> Handler | None:
        topic, message = delivery.topic.name, delivery.message.type
        family = OF_EVERY_TENANT if topic.startswith("tenant.") else topic
        return self._handlers.get((topic, message)) or self._handlers.get((family, message))

    def _unit(self, conn: Connection, delivery: Delivery) -> Unit:
        envelope = delivery.envelope
        correlation = envelope.correlation_id or envelope.id
        now = self._database.now()
        return Unit(conn, self._service, now, envelope, delivery.topic.name, correlation, delivery.record)

    async def _refuse(self, delivery: Delivery, refused: Refused, resolve: Resolve | None) -> str:
        async with self._database.transaction() as conn:
            if not await insert(conn, self._service, [entry_of(delivery, is_handled=True)]):
                # Refused before: by a member that the partition went to, or in a commit whose answer was lost.
                if resolve is not None:
                    await resolve(conn)
                return "duplicate"
            unit = self._unit(conn, delivery)
            await unit.emit(refusal_of(delivery, refused))
            if resolve is not None:
                await resolve(conn)
        self._wake()
        return "refused"

    async def _wait(
        self, delivery: Delivery, unknown: ParentUnknown, resolve: Resolve | None, source: tuple[str, int]
    ) -> str:
        if source[0] == "waiting":
            await waiting.now_for_parent(self._database, source[1], unknown, now=self._database.now())
            return await self._keep_waiting(delivery, resolve, source)
        async with self._database.transaction() as conn:
            await waiting.add(conn, delivery, unknown, now=self._database.now())
            if resolve is not None:
                await resolve(conn)
        return "waiting"

    async def _keep_waiting(
        self, delivery: Delivery, resolve: Resolve | None, source: tuple[str, int]
    ) -> str:
        """End the wait once all records are read that the log had at expiry: no outage of ours counts as waiting."""
        is_expired = await waiting.is_expired(self._database, source[1], now=self._database.now())
        if not is_expired or not await self._has_read_all():
            return "waiting"
        return await self._decide(delivery, resolve, source, is_last=True)

    async def _stop_waiting(self, delivery: Delivery, unknown: ParentUnknown, resolve: Resolve | None) -> str:
        if not delivery.topic.is_commands:
            return await self._park(delivery, _MustPark("parent_unknown", str(unknown)), resolve)
        refused = Refused("unknown_parent", f"{unknown.parent} is not known after the time limit")
        return await self._refuse(delivery, refused, resolve)

    async def _park(self, delivery: Delivery, end: _MustPark, resolve: Resolve | None) -> str:
        # A tenant's message is no evidence that the fault is ours, and ends no process.
        counts = end.reason == "failed" and delivery.topic.tenant is None
        if counts and self._parked_in_a_row >= MAX_PARKED_IN_A_ROW:
            raise TooManyParked(f"{self._parked_in_a_row + 1} messages in a row failed: {end.detail}")
        blocks = end.blocks and delivery.topic.is_event_stream
        unreadable = parking.from_delivery(delivery, end.reason, end.detail)
        outcome = await self._store_parked(unreadable, blocks=blocks, resolve=resolve)
        self._parked_in_a_row += counts
        return outcome

    async def _park_unreadable(self, unreadable: Unreadable) -> str:
        return await self._store_parked(unreadable, blocks=unreadable.blocks, resolve=None)

    async def _store_parked(self, unreadable: Unreadable, *, blocks: bool, resolve: Resolve | None) -> str:
        async with self._database.transaction() as conn:
            await self._keep(Unit(conn, self._service, self._database.now()), unreadable, blocks=blocks)
            if resolve is not None:
                await resolve(conn)
        self._report_parked(unreadable)
        self._wake()
        return "parked"

    async def _keep(self, unit: Unit, unreadable: Unreadable, *, blocks: bool) -> None:
        await parking.park(unit, unreadable, blocks=blocks, kept_rows=self._kept_rows)

    def _report_parked(self, unreadable: Unreadable) -> None:
        log.warning(
            "message parked",
            event_id=unreadable.event_id,
            location=unreadable.record.location,
            reason=unreadable.reason,
            detail=unreadable.detail,
        )
        PARKED.labels(self._service, unreadable.record.topic, unreadable.reason).inc()

    async def _resolve(self, resolve: Resolve | None) -> None:
        if resolve is not None:
            async with self._database.transaction() as conn:
                await resolve(conn)


def _read(record: Record) -> Delivery | Unreadable:
    entry = read(record)
    failpoint("consume.decoded")
    return entry


def _backoff(failures: int) -> float:
    longest = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0**failures)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311
