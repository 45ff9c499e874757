"""The leased tasks of one service, after `shared/messaging/tasks.py`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import Rejected
from shared.messaging.tasks import report_nothing, unavailable_dependency
from shared.messaging.unit import Task
from tests.simulation.clock import Process, pause
from tests.simulation.unit import Unit

if TYPE_CHECKING:
    from tests.simulation.kernel import Kernel

MAX_BACKOFF_SECONDS = 30.0
LONGEST_ABSENCE_SECONDS = 30.0
"""Of Postgres, at the end of a task: as long as the lease holds."""


@dataclass
class Kind:
    work: Callable[[Any], Any]
    done: Callable[[Any, Any, Any], Awaitable[None]]
    failed: Callable[[Any, Exception, Any], Awaitable[None]]
    attempts: int
    concurrency: int
    waits: Callable[[Any, str, Any], Awaitable[None]] = report_nothing
    running: int = 0


@dataclass
class Row:
    task: Task
    failures: int = 0
    away_since: float | None = None
    not_before: float = 0.0
    is_leased: bool = False


class Tasks:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._kinds: dict[type[Task], Kind] = {}
        self.rows: dict[tuple[str, str], Row] = {}
        self._processes: set[Process] = set()

    def on(self, payload: type[Task], kind: Kind) -> None:
        self._kinds[payload] = kind

    def add(self, task: Task) -> None:
        """Nothing happens if a task of that kind and key is there already."""
        name = (type(task).__name__, task.key)
        if name not in self.rows:
            self.rows[name] = Row(task)
            self._kernel.clock.after(self._kernel.rng.random() * 0.2, self.look)

    def cancel(self, name: tuple[str, str]) -> None:
        """Who works on it continues for a while, as until its lease is to be renewed, and is not heard."""
        self.rows.pop(name, None)

    def end_all(self) -> None:
        """The process is dead: leases of its own are free at its next start."""
        for process in self._processes:
            process.kill()
        self._processes.clear()
        for row in self.rows.values():
            row.is_leased = False
        self._kinds.clear()

    def look(self) -> None:
        """Begin whatever is due and has a free worker."""
        if not self._kernel.up:
            return
        now = self._kernel.clock.now
        for name, row in list(self.rows.items()):
            kind = self._kinds[type(row.task)]
            if not row.is_leased and row.not_before <= now and kind.running < kind.concurrency:
                self._begin(name, row, kind)

    def _begin(self, name: tuple[str, str], row: Row, kind: Kind) -> None:
        row.is_leased = True
        kind.running += 1

        def end(finish: Callable[[Any], None], outcome: Any) -> None:
            kind.running -= 1
            self._processes.discard(process)
            if self._kernel.up:
                finish(outcome)
                self._kernel.clock.after(0.0, self.look)

        process = Process(
            self._kernel.clock,
            self._work(kind, row.task),
            on_end=lambda result: end(lambda outcome: self._worked(name, row, kind, outcome), result),
            on_error=lambda error: end(lambda outcome: self._broke(name, row, kind, outcome), error),
        )
        self._processes.add(process)

    async def _work(self, kind: Kind, task: Task) -> Any:
        try:
            result = await kind.work(task)
        except Exception:
            await self._until_postgres_is_back()
            raise
        await self._until_postgres_is_back()
        return result

    async def _until_postgres_is_back(self) -> None:
        if self._kernel.world.faults.strikes("end late", self._kernel.name):
            await pause(self._kernel.rng.random() * LONGEST_ABSENCE_SECONDS)

    def _worked(self, name: tuple[str, str], row: Row, kind: Kind, result: Any) -> None:
        if self.rows.get(name) is not row:
            return
        if self._kernel.crashes("task"):
            return
        self._kernel.begin(self._finish(name, row, lambda unit: kind.done(row.task, result, unit)))

    async def _finish(self, name: tuple[str, str], row: Row, apply: Callable[[Any], Awaitable[None]]) -> None:
        """Delete the task and apply its end in one transaction."""
        kernel = self._kernel
        at_once = kernel.switches.ends_tasks_apart != kernel.name

        async def end(unit: Unit) -> None:
            if self.rows.get(name) is not row:
                return
            if at_once:
                unit.cancelled_tasks.append(name)
            await apply(unit)

        try:
            await kernel.transact(end)
        except Exception as error:  # noqa: BLE001  whatever escapes is judged
            kernel.world.alarm("unexpected error", f"{kernel.name} ends {name}: {error!r}", error)
            return
        if not at_once and not kernel.crashes("task"):
            del self.rows[name]

    def _broke(self, name: tuple[str, str], row: Row, kind: Kind, error: Exception) -> None:
        if self.rows.get(name) is not row:
            return
        if not self._kernel.world.is_expected(error):
            self._kernel.world.alarm("unexpected error", f"{self._kernel.name} {name}: {error!r}", error)
        if unavailable_dependency(error) is not None:
            self._wait(row, error, kind)
            return
        row.failures += 1
        if isinstance(error, Rejected) or row.failures >= kind.attempts:
            self._kernel.begin(self._finish(name, row, lambda unit: kind.failed(row.task, error, unit)))
            return
        row.away_since = None
        self._come_again(row, min(MAX_BACKOFF_SECONDS, 0.5 * 2**row.failures))

    def _wait(self, row: Row, error: Exception, kind: Kind) -> None:
        now = self._kernel.clock.now
        if row.away_since is None:
            row.away_since = now
            dependency = str(unavailable_dependency(error))
            self._kernel.begin(self._kernel.transact(lambda unit: kind.waits(row.task, dependency, unit)))
        longest = min(max(now - row.away_since, 0.5), MAX_BACKOFF_SECONDS)
        self._come_again(row, longest * (0.5 + self._kernel.rng.random() / 2))

    def _come_again(self, row: Row, seconds: float) -> None:
        row.is_leased = False
        row.not_before = self._kernel.clock.now + seconds
        self._kernel.clock.after(seconds, self.look)
