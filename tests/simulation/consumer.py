"""The consumer of one service, after `shared/messaging/consumer.py` and `waiting.py`."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from schemas.base import CommandRefused
from schemas.topics import LISTENS, Topic
from shared.errors import ParentUnknown, Refused, Rejected
from tests.simulation.inbox import Inbox, Waiting
from tests.simulation.log import Cursor, Record
from tests.simulation.unit import Unit

if TYPE_CHECKING:
    from tests.simulation.kernel import Kernel

Handler = Callable[[Any, Any], Awaitable[None]]


class Consumer:
    """Hands each record of the log to its handler, once in effect."""

    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._world = kernel.world
        self.handlers: dict[tuple[str, str], Handler] = {}
        self.inbox = Inbox()
        self.waiting = Waiting()
        self.parked: list[tuple[Record, str]] = []
        self._blocked: set[tuple[str, str]] = set()
        self._is_retrying = False
        self._at_heads = False
        self._busy: set[int] = set()
        """Processes that have a record in hand."""
        names = LISTENS[kernel.name]
        self.cursors = [self._cursor(topic, number) for topic in names for number in range(topic.partitions)]

    def start(self) -> None:
        self._at_heads = False
        self._busy.clear()
        for cursor in self.cursors:
            cursor.is_scheduled = False
            self._schedule(cursor)
        self._retry_later(0.1)

    def retry_soon(self) -> None:
        """Something was released."""
        if self.waiting.rows:
            self._kernel.clock.after(0.05, self._retry_heads)

    def _cursor(self, topic: Topic, number: int) -> Cursor:
        cursor = Cursor(topic, number, self._world.log.partition(topic.name, number))
        cursor.partition.readers.append(lambda: self._schedule(cursor))
        self._assign(cursor)
        return cursor

    def _assign(self, cursor: Cursor) -> None:
        """To one of the processes of the group."""
        if self._world.processes > 1:
            cursor.process = self._world.rng.randrange(self._world.processes)

    def _schedule(self, cursor: Cursor) -> None:
        if cursor.is_scheduled or not self._kernel.up:
            return
        while (record := cursor.next) is not None and self._skips(record):
            cursor.position += 1
        if record is not None:
            cursor.is_scheduled = True
            at = max(
                self._kernel.clock.now + self._world.lag(), cursor.stalled_until, self._world.log.away_until
            )
            self._kernel.clock.at(at, self._consume, cursor)

    def _consume(self, cursor: Cursor) -> None:
        record = cursor.next
        if cursor.process in self._busy and self._kernel.up:
            self._kernel.clock.after(self._world.lag(), self._consume, cursor)
            return
        cursor.is_scheduled = False
        if not self._kernel.up or record is None:
            return
        if self._kernel.clock.now < self._world.log.away_until:
            self._schedule(cursor)
            return
        cursor.is_scheduled = True
        self._busy.add(cursor.process)
        self._kernel.begin(self._handle(cursor, record))

    async def _handle(self, cursor: Cursor, record: Record) -> None:
        has_faults = self._world.faults.active
        if has_faults and self._kernel.crashes("before the commit"):
            cursor.position += not self._kernel.switches.commits_offset_after_effect
            return
        await self._deliver(record)
        if has_faults and self._kernel.crashes("after the commit"):
            return
        cursor.position += 1
        self._busy.discard(cursor.process)
        if has_faults:
            self._disturb(cursor)
        cursor.is_scheduled = False
        self._schedule(cursor)

    def _disturb(self, cursor: Cursor) -> None:
        if self._world.faults.strikes("rewind", self._kernel.name):
            cursor.rewind(self._kernel.rng)
            self._assign(cursor)
        if self._world.faults.strikes("stall", self._kernel.name):
            cursor.stalled_until = self._kernel.clock.now + self._kernel.rng.choice((2.0, 15.0, 60.0, 800.0))

    def _skips(self, record: Record) -> bool:
        """A type without a handler only moves the story on, unless something of the story is in the way."""
        name = record.topic.name
        if (name, record.type) in self.handlers:
            return False
        if record.sequence is None:
            return True
        story = (name, record.key)
        if story in self.waiting.stories or story in self._blocked:
            return False
        return self.inbox.skip(record)

    async def _deliver(self, record: Record, row: int | None = None) -> str:
        self._world.messages += 1
        while (outcome := await self._try(record, row)) == "gave way":
            await self._kernel.try_again()
        if self._world.is_traced:
            self._world.trace(self._kernel.name, record, outcome)
        return outcome

    async def _try(self, record: Record, row: int | None) -> str:
        try:
            return await self._apply(record, row)
        except Refused as refused:
            return self._refuse(record, refused)
        except ParentUnknown as unknown:
            return self._wait(record, unknown, row)
        except Rejected as error:
            return self._park(record, f"rejected: {error}", error)
        except Exception as error:  # noqa: BLE001  whatever escapes is judged
            if self._kernel.gives_way(error):
                return "gave way"
            return self._park(record, f"failed: {error!r}", error)

    async def _apply(self, record: Record, row: int | None) -> str:
        async with self._kernel.unit(record=record) as unit:
            await unit.conn.hold(f"{record.topic.name} {record.key}")
            outcome = await self._admit(record, row, unit)
        if outcome == "applied":
            self._world.checker.after(self._kernel, record)
        return outcome

    async def _admit(self, record: Record, row: int | None, unit: Unit) -> str:
        story = (record.topic.name, record.key)
        admission = self.inbox.admit(record, has_inbox=self._kernel.switches.has_inbox)
        if admission == "duplicate":
            return admission
        if record.sequence is not None:
            if story in self._blocked:
                return self._park(record, "behind_parked")
            if self.waiting.is_behind(story, row):
                raise ParentUnknown("behind a waiting message")
            if admission == "gap":
                return self._park(record, "gap")
        handler = self.handlers.get((record.topic.name, record.type))
        if handler is None:
            self.inbox.skip(record)
            return "ignored"
        await self._call(handler, record, unit)
        self._world.checker.applies(self._kernel, record)
        self.inbox.add(record)
        return "applied"

    async def _call(self, handler: Handler, record: Record, unit: Unit) -> None:
        try:
            await handler(record.message, unit)
        except Refused as refused:
            if record.topic.is_commands:
                raise
            raise Rejected(f"{refused.code}: {refused.message}") from refused

    def _refuse(self, record: Record, refused: Refused) -> str:
        self.inbox.add(record)
        unit = Unit(self._kernel, self._kernel.clock.utc, record)
        unit.events.append(
            CommandRefused(
                subject_id=refused.subject_id or record.key,
                command=record.type,
                command_id=record.id,
                code=refused.code,
                message=refused.message,
                param=refused.param,
                tenant=getattr(record.message, "tenant", None),
            )
        )
        self._kernel.commit(unit)
        return "refused"

    def _wait(self, record: Record, unknown: ParentUnknown, row: int | None) -> str:
        if row is None:
            expires = self._kernel.clock.now + unknown.within.total_seconds()
            self.waiting.add(record, unknown.parent, expires)
            self._retry_later(1.0)
        elif self.waiting.is_expired(row, self._kernel.clock.now) and self._has_read_all():
            if not record.topic.is_commands:
                return self._park(record, f"parent_unknown: {unknown.parent}")
            return self._refuse(record, Refused("unknown_parent", f"{unknown.parent} is not known"))
        return "waiting"

    def _has_read_all(self) -> bool:
        return self._kernel.switches.limit_counts_outages or all(
            cursor.next is None for cursor in self.cursors
        )

    def _park(self, record: Record, reason: str, error: Exception | None = None) -> str:
        self.parked.append((record, reason))
        if record.sequence is not None:
            self._blocked.add((record.topic.name, record.key))
        self._world.checker.parked(self._kernel, record, reason, error)
        return "parked"

    def _retry_later(self, seconds: float) -> None:
        if self.waiting.rows and not self._is_retrying:
            self._is_retrying = True
            self._kernel.clock.after(seconds, self._retry_heads)

    def _retry_heads(self) -> None:
        self._is_retrying = False
        if not self._kernel.up:
            return
        if self._at_heads:
            self._retry_later(1.0)
            return
        self._at_heads = True
        self._kernel.begin(self._try_heads())

    async def _try_heads(self) -> None:
        moved = True
        while moved:
            moved = False
            for number, record in self.waiting.heads():
                if await self._deliver(record, number) != "waiting":
                    self.waiting.remove(number)
                    moved = True
        self._at_heads = False
        self._retry_later(1.0)
