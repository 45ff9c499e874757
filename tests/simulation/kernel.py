"""One service in memory: the consumer, outbox and relay, timers, tasks, loops; it crashes and comes back.

Mirrors `shared/service.py` and `shared/messaging/`; offers what a service's `register` asks of a `Service`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from schemas.base import Message
from schemas.topics import Topic, topic_carrying
from shared.messaging.tasks import report_nothing
from tests.simulation.clock import START, Process, pause, run_now
from tests.simulation.consumer import Consumer, Handler
from tests.simulation.log import Record
from tests.simulation.outbox import Outbox
from tests.simulation.tables import GAVE_WAY, Tables
from tests.simulation.tasks import Kind, Tasks
from tests.simulation.unit import Unit, topic_for

if TYPE_CHECKING:
    from tests.simulation.world import World


TRY_AGAIN_SECONDS = 0.1


@dataclass(frozen=True)
class Switches:
    """The kernel as it is; a mutant changes one."""

    has_inbox: bool = True
    ends_tasks_apart: str = ""
    """The service that deletes a task after the transaction that applies its end."""
    commits_offset_after_effect: bool = True
    marks_after_publishing: bool = True
    limit_counts_outages: bool = False
    waits_for_the_fence: bool = True
    """Whether the engine calls an attempt gone only when its runners must have ended themselves."""
    silence_counts_outages: bool = False


class Kernel:
    def __init__(self, world: "World", name: str, wire: Callable[["Kernel"], None]) -> None:
        self.world = world
        self.name = name
        self.clock = world.clock
        self.rng = world.rng
        self.switches = world.switches
        self.tables = Tables()
        self.timers: dict[int, tuple[BaseModel, float]] = {}
        self.outbox = Outbox(self)
        self.tasks = Tasks(self)
        self.up = False
        self.objects = None
        self._wire = wire
        self._timer_handlers: dict[type[BaseModel], Handler] = {}
        self._loops: list[tuple[float, Callable[[], Coroutine[Any, Any, None]]]] = []
        self._start_hooks: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._processes: list[Process] = []
        self._transactions: dict[Process, None] = {}
        self._crash_hooks: list[Callable[[], object]] = []
        self._num_timers = 0
        self.consumer = Consumer(self)

    # What `register` asks of a service.

    def on(self, message: type[Message], handler: Handler, *, topic: Topic | None = None) -> None:
        self.consumer.handlers[(topic or topic_carrying(message)).name, message.type] = handler

    def on_timer(self, payload: type[BaseModel], handler: Handler) -> None:
        self._timer_handlers[payload] = handler

    def on_task(
        self,
        payload: Any,
        *,
        work: Any,
        done: Any,
        failed: Any,
        attempts: int = 3,
        concurrency: int = 1,
        waits: Any = report_nothing,
    ) -> None:
        self.tasks.on(payload, Kind(work, done, failed, attempts, concurrency, waits))

    def every(
        self, period: timedelta, function: Callable[[], Coroutine[Any, Any, None]], *, singleton: bool = False
    ) -> None:
        """What its processes keep in memory, they share here, and both lead or none does."""
        self._loops.append((period.total_seconds(), function))

    def on_start(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._start_hooks.append(function)

    on_lead = on_start

    def on_stop(self, function: Callable[[], Awaitable[None]]) -> None:
        """Nothing is stopped in an orderly way here."""

    on_lead_end = on_stop

    @asynccontextmanager
    async def unit(self, *, correlation_id: str = "", record: Record | None = None) -> AsyncIterator[Unit]:
        unit = Unit(self, self.clock.utc, record)
        transaction = self.tables.begin()
        try:
            yield unit
        except BaseException:
            self.tables.roll_back(transaction)
            raise
        self.commit(unit)

    def at_crash(self, function: Callable[[], object]) -> None:
        """What the process holds outside of this kernel ends with it."""
        self._crash_hooks.append(function)

    def listening_since(self) -> datetime:
        """Nobody hears anything while the process or the log is away."""
        away_until = START + timedelta(seconds=self.world.log.away_until)
        if self.switches.silence_counts_outages:
            return self._started_at
        return max(self._started_at, min(away_until, self.clock.utc))

    async def caught_up(self, topic_name: str) -> None:
        cursors = [cursor for cursor in self.consumer.cursors if cursor.topic.name == topic_name]
        ends = [len(cursor.partition.records) for cursor in cursors]
        while self.clock.now < self.world.log.away_until:
            await pause(1.0)
        while any(cursor.position < end for cursor, end in zip(cursors, ends, strict=True)):
            await pause(0.5)

    # Life and death.

    def start(self) -> None:
        self.up = True
        self._started_at = self.clock.utc
        self._wire(self)
        hooks, self._start_hooks = self._start_hooks, []
        for hook in hooks:
            run_now(hook())
        if self.world.processes > 1:
            self.tables.turn = self.world.turn
        loops, self._loops = self._loops, []
        self._processes = [
            Process(self.clock, self._repeat(period, loop), on_error=self._loop_broke)
            for period, loop in loops
        ]
        for number, (_, at) in list(self.timers.items()):
            self.clock.at(at + 0.01, self._fire, number)
        self.tasks.look()
        self.outbox.wake()
        self.consumer.start()

    def crash(self, seconds: float | None = None) -> None:
        """The process is killed; what was committed stays. It comes back after a while."""
        if not self.up:
            return
        self.up = False
        for process in (*self._processes, *self._transactions):
            process.kill()
        self._transactions.clear()
        self.tables.turn = None
        self.tasks.end_all()
        for hook in self._crash_hooks:
            hook()
        self._crash_hooks.clear()
        self.consumer.handlers.clear()
        self._timer_handlers.clear()
        down = self.rng.choice((0.2, 1.0, 5.0, 20.0)) if seconds is None else seconds
        self.world.note(f"{self.name} crashes, back in {down} s")
        self.clock.after(down, self.start)

    def crashes(self, failpoint: str) -> bool:
        """Whether the process is killed at this failpoint, if faults are about."""
        if not self.world.faults.strikes(f"crash {failpoint}", self.name):
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

    # Transactions and timers.

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """With one process at once and to its end, else beside other transactions."""
        if self.world.processes == 1:
            run_now(work)
            return
        process = Process(self.clock, work, on_end=lambda _: self._transactions.pop(process, None))
        self._transactions[process] = None

    async def transact(self, apply: Callable[[Unit], Awaitable[None]]) -> None:
        while True:
            try:
                async with self.unit() as unit:
                    return await apply(unit)
            except GAVE_WAY as error:
                if not self.gives_way(error):
                    raise
                await self.try_again()

    def gives_way(self, error: Exception) -> bool:
        """Whether another process was at the same rows, so that the transaction is tried again."""
        return self.world.processes > 1 and isinstance(error, GAVE_WAY)

    async def try_again(self) -> None:
        """After a while."""
        await pause(self.rng.random() * TRY_AGAIN_SECONDS)

    def commit(self, unit: Unit) -> None:
        self.tables.commit()
        for payload, at in unit.timers:
            self._set_timer(payload, at)
        for message in unit.events:
            self.outbox.add(message, topic_for(type(message), self.name), unit)
        for name in unit.cancelled_tasks:
            self.tasks.cancel(name)
        for task in unit.tasks:
            self.tasks.add(task)
        if unit.parents:
            self.consumer.retry_soon()
        if unit.events:
            self.world.checker.emitted(unit)

    def _set_timer(self, payload: BaseModel, at: datetime) -> None:
        self._num_timers += 1
        seconds = self.clock.seconds_of(at)
        self.timers[self._num_timers] = (payload, seconds)
        self.clock.at(seconds + 0.1, self._fire, self._num_timers)

    def _fire(self, number: int) -> None:
        if self.up and number in self.timers:
            self.begin(self._handle_timer(number))

    async def _handle_timer(self, number: int) -> None:
        async def fire(unit: Unit) -> None:
            await unit.conn.hold(f"timer {number}")
            if number in self.timers:
                payload, _ = self.timers[number]
                await self._timer_handlers[type(payload)](payload, unit)
                del self.timers[number]

        try:
            await self.transact(fire)
        except Exception as error:  # noqa: BLE001  whatever escapes is judged
            timer = self.timers.get(number)
            self.world.alarm("unexpected error", f"{self.name} timer {timer!r}: {error!r}", error)
