"""One service in memory: the consume edge, outbox and relay, timers, tasks, loops; it crashes and comes back.

Mirrors `shared/service.py` and `shared/messaging/`; offers what a service's `register` asks of a `Service`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from schemas.base import CommandRefused, Message
from schemas.topics import LISTENS, Topic
from shared.errors import ParentUnknown, Refused, Rejected
from tests.simulation.clock import Process, pause, run_now
from tests.simulation.inbox import Inbox, Waiting
from tests.simulation.log import Cursor, Record
from tests.simulation.outbox import Outbox
from tests.simulation.tables import Tables
from tests.simulation.tasks import Kind, Tasks
from tests.simulation.unit import Unit, topic_for

if TYPE_CHECKING:
    from tests.simulation.world import World

Handler = Callable[[Any, Any], Awaitable[None]]


@dataclass(frozen=True)
class Switches:
    """The kernel as it is; a mutant turns one off."""

    has_inbox: bool = True
    tasks_end_in_one_transaction: bool = True
    commits_offset_after_effect: bool = True
    marks_after_publishing: bool = True
    limit_counts_outages: bool = False


class Kernel:
    def __init__(self, world: "World", name: str, wire: Callable[["Kernel"], None]) -> None:
        self.world = world
        self.name = name
        self.clock = world.clock
        self.rng = world.rng
        self.switches = world.switches
        self.tables = Tables()
        self.inbox = Inbox()
        self.waiting = Waiting()
        self.parked: list[tuple[Record, str]] = []
        self.blocked: set[tuple[str, str]] = set()
        self.timers: dict[int, tuple[BaseModel, float]] = {}
        self.outbox = Outbox(self)
        self.tasks = Tasks(self)
        self.up = False
        self.objects = None
        self._wire = wire
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._timer_handlers: dict[type[BaseModel], Handler] = {}
        self._loops: list[tuple[float, Callable[[], Coroutine[Any, Any, None]]]] = []
        self._start_hooks: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._processes: list[Process] = []
        self._crash_hooks: list[Callable[[], object]] = []
        self._num_timers = 0
        self._is_retrying = False
        self.cursors = [self._cursor(topic, n) for topic in LISTENS[name] for n in range(topic.partitions)]

    # What `register` asks of a service.

    def on(self, message: type[Message], handler: Handler) -> None:
        for topic in LISTENS[self.name]:
            if message in topic.messages:
                self._handlers[topic.name, message.type] = handler

    def on_timer(self, payload: type[BaseModel], handler: Handler) -> None:
        self._timer_handlers[payload] = handler

    def on_task(
        self, payload: Any, *, work: Any, done: Any, failed: Any, attempts: int = 3, concurrency: int = 1
    ) -> None:
        self.tasks.on(payload, Kind(work, done, failed, attempts, concurrency))

    def every(self, period: timedelta, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loops.append((period.total_seconds(), function))

    def on_start(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._start_hooks.append(function)

    def on_stop(self, function: Callable[[], Awaitable[None]]) -> None:
        """Nothing is stopped in an orderly way here."""

    @asynccontextmanager
    async def unit(self, *, correlation_id: str = "") -> AsyncIterator[Unit]:
        unit = Unit(self, self.clock.utc)
        try:
            yield unit
        except BaseException:
            self.tables.roll_back()
            raise
        self._commit(unit, "loop")

    def at_crash(self, function: Callable[[], object]) -> None:
        """What the process holds outside of this kernel ends with it."""
        self._crash_hooks.append(function)

    async def caught_up(self, topic_name: str) -> None:
        cursors = [cursor for cursor in self.cursors if cursor.topic.name == topic_name]
        ends = [len(cursor.partition.records) for cursor in cursors]
        while any(cursor.position < end for cursor, end in zip(cursors, ends, strict=True)):
            await pause(0.5)

    # Life and death.

    def start(self) -> None:
        self.up = True
        self._wire(self)
        hooks, self._start_hooks = self._start_hooks, []
        for hook in hooks:
            run_now(hook())
        loops, self._loops = self._loops, []
        self._processes = [
            Process(self.clock, self._repeat(period, loop), on_error=self._loop_broke)
            for period, loop in loops
        ]
        for cursor in self.cursors:
            cursor.is_scheduled = False
            self._schedule(cursor)
        for number, (_, at) in list(self.timers.items()):
            self.clock.at(at + 0.01, self._fire, number)
        self.tasks.look()
        self.outbox.poke()
        self._retry_later(0.1)

    def crash(self, seconds: float | None = None) -> None:
        """The process is killed; what was committed stays. It comes back after a while."""
        if not self.up:
            return
        self.up = False
        for process in self._processes:
            process.kill()
        self.tasks.end_all()
        for hook in self._crash_hooks:
            hook()
        self._crash_hooks.clear()
        self._handlers.clear()
        self._timer_handlers.clear()
        down = self.rng.choice((0.2, 1.0, 5.0, 20.0)) if seconds is None else seconds
        self.world.note(f"{self.name} crashes, back in {down} s")
        self.clock.after(down, self.start)

    def crashes(self, place: str) -> bool:
        """Whether the process is killed at this place, if faults are about."""
        if not self.world.faults.strikes(f"crash {place}", self.name):
            return False
        self.crash()
        return True

    async def _repeat(self, period: float, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await loop()
            except Exception as error:  # noqa: BLE001  whatever escapes is judged
                self._loop_broke(error)
            await pause(period)

    def _loop_broke(self, error: Exception) -> None:
        if not self.world.is_expected(error):
            self.world.alarm("unexpected error", f"a loop of {self.name}: {error!r}", error)

    # The consume edge.

    def _cursor(self, topic: Topic, number: int) -> Cursor:
        cursor = Cursor(topic, number, self.world.log.partition(topic.name, number))
        cursor.partition.readers.append(lambda: self._schedule(cursor))
        return cursor

    def _schedule(self, cursor: Cursor) -> None:
        if cursor.is_scheduled or not self.up:
            return
        while (record := cursor.next) is not None and self._skips(record):
            cursor.position += 1
        if record is not None:
            cursor.is_scheduled = True
            at = max(self.clock.now + self.world.lag(), cursor.stalled_until)
            self.clock.at(at, self._consume, cursor)

    def _consume(self, cursor: Cursor) -> None:
        cursor.is_scheduled = False
        record = cursor.next
        if not self.up or record is None:
            return
        has_faults = self.world.faults.active
        if has_faults and self.crashes("before the commit"):
            cursor.position += not self.switches.commits_offset_after_effect
            return
        self._deliver(record)
        if has_faults and self.crashes("after the commit"):
            return
        cursor.position += 1
        if has_faults:
            self._disturb(cursor)
        self._schedule(cursor)

    def _disturb(self, cursor: Cursor) -> None:
        if self.world.faults.strikes("rewind", self.name):
            cursor.rewind(self.rng)
        if self.world.faults.strikes("stall", self.name):
            cursor.stalled_until = self.clock.now + self.rng.choice((2.0, 15.0, 60.0, 800.0))

    def _skips(self, record: Record) -> bool:
        """A type without a handler only moves the story on, unless something of the story is in the way."""
        name = record.topic.name
        if (name, record.type) in self._handlers:
            return False
        if record.sequence is None:
            return True
        story = (name, record.key)
        if story in self.waiting.stories or story in self.blocked:
            return False
        return self.inbox.skip(record)

    def _deliver(self, record: Record, row: int | None = None) -> str:
        self.world.messages += 1
        try:
            outcome = self._apply(record, row)
        except Refused as refused:
            outcome = self._refuse(record, refused)
        except ParentUnknown as unknown:
            outcome = self._wait(record, unknown, row)
        except Rejected as error:
            outcome = self._park(record, f"rejected: {error}", error)
        except Exception as error:  # noqa: BLE001  whatever escapes is judged
            outcome = self._park(record, f"failed: {error!r}", error)
        if self.world.is_traced:
            self.world.trace(self.name, record, outcome)
        return outcome

    def _apply(self, record: Record, row: int | None) -> str:
        story = (record.topic.name, record.key)
        found = self.inbox.admit(record, has_inbox=self.switches.has_inbox)
        if found == "duplicate":
            return found
        if record.sequence is not None:
            if story in self.blocked:
                return self._park(record, "behind_parked")
            if self.waiting.is_behind(story, row):
                raise ParentUnknown("behind a waiting message")
            if found == "gap":
                return self._park(record, "gap")
        handler = self._handlers.get((record.topic.name, record.type))
        if handler is None:
            self.inbox.skip(record)
            return "ignored"
        unit = Unit(self, self.clock.utc, record)
        self.world.checker.before(self, record)
        try:
            run_now(self._call(handler, record, unit))
        except BaseException:
            self.tables.roll_back()
            raise
        self.inbox.add(record)
        self._commit(unit, record.type)
        self.world.checker.after(self, record)
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
        unit = Unit(self, self.clock.utc, record)
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
        self._commit(unit, record.type)
        return "refused"

    def _wait(self, record: Record, unknown: ParentUnknown, row: int | None) -> str:
        if row is None:
            expires = self.clock.now + unknown.within.total_seconds()
            self.waiting.add(record, unknown.parent, expires)
            self._retry_later(1.0)
        elif self.waiting.is_expired(row, self.clock.now) and self._has_read_all():
            if not record.topic.is_commands:
                return self._park(record, f"parent_unknown: {unknown.parent}")
            return self._refuse(record, Refused("unknown_parent", f"{unknown.parent} is not known"))
        return "waiting"

    def _has_read_all(self) -> bool:
        return self.switches.limit_counts_outages or all(cursor.next is None for cursor in self.cursors)

    def _park(self, record: Record, reason: str, error: Exception | None = None) -> str:
        self.parked.append((record, reason))
        if record.sequence is not None:
            self.blocked.add((record.topic.name, record.key))
        self.world.checker.parked(self, record, reason, error)
        return "parked"

    def _retry_later(self, seconds: float) -> None:
        if self.waiting.rows and not self._is_retrying:
            self._is_retrying = True
            self.clock.after(seconds, self._retry_heads)

    def _retry_heads(self) -> None:
        self._is_retrying = False
        if not self.up:
            return
        moved = True
        while moved:
            moved = False
            for number, record in self.waiting.heads():
                if self._deliver(record, number) != "waiting":
                    self.waiting.remove(number)
                    moved = True
        self._retry_later(1.0)

    # Transactions, timers, relay.

    def transact(self, apply: Callable[[Unit], Awaitable[None]], *, what: str) -> None:
        unit = Unit(self, self.clock.utc)
        try:
            run_now(apply(unit))  # type: ignore[arg-type]
        except BaseException:
            self.tables.roll_back()
            raise
        self._commit(unit, what)

    def _commit(self, unit: Unit, what: str) -> None:
        self.tables.commit()
        for payload, at in unit.timers:
            self._set_timer(payload, at)
        for message in unit.events:
            self.outbox.add(message, topic_for(type(message), self.name), unit)
        for task in unit.tasks:
            self.tasks.add(task)
        if unit.parents and self.waiting.rows:
            self.clock.after(0.05, self._retry_heads)
        if unit.events:
            self.world.checker.emitted(unit)

    def _set_timer(self, payload: BaseModel, at: datetime) -> None:
        self._num_timers += 1
        seconds = self.clock.seconds_of(at)
        self.timers[self._num_timers] = (payload, seconds)
        self.clock.at(seconds + 0.1, self._fire, self._num_timers)

    def _fire(self, number: int) -> None:
        if not self.up or number not in self.timers:
            return
        payload, _ = self.timers.pop(number)
        handler = self._timer_handlers[type(payload)]
        try:
            self.transact(lambda unit: handler(payload, unit), what=type(payload).__name__)
        except Exception as error:  # noqa: BLE001  whatever escapes is judged
            self.world.alarm("unexpected error", f"{self.name} timer {payload!r}: {error!r}", error)
