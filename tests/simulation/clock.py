"""Virtual time: a queue of calls, and coroutines that sleep in it."""

import heapq
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2027, 3, 1, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._calls = 0
        self.processes: dict[Process, None] = {}
        """All that have not ended, oldest first."""

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        self._calls += 1
        heapq.heappush(self._queue, (max(time, self.now), self._calls, call, args))

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now + seconds, call, *args)

    def step(self) -> bool:
        """Make the next call; False where none is left."""
        if not self._queue:
            return False
        self.now, _, call, args = heapq.heappop(self._queue)
        call(*args)
        return True

    def close(self) -> None:
        """The end of the world: nothing is waited for any more."""
        for process in list(self.processes):
            process.kill()
        self._queue.clear()

    def __call__(self) -> datetime:
        return self.utc

    @property
    def utc(self) -> datetime:
        return START + timedelta(seconds=self.now)

    def seconds_of(self, time: datetime) -> float:
        return (time - START).total_seconds()


class Signal:
    """What processes wait for; it forgets them when it fires."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Process, int]] = []

    def add(self, process: "Process", turn: int) -> None:
        self._waiting.append((process, turn))

    def fire(self) -> None:
        waiting, self._waiting = self._waiting, []
        for process, turn in waiting:
            process.wake(turn)


class _Wait:
    __slots__ = ("seconds", "signal")

    def __init__(self, seconds: float | None, signal: Signal | None) -> None:
        self.seconds = seconds
        self.signal = signal

    def __await__(self) -> Generator["_Wait", None, None]:
        yield self


def pause(seconds: float) -> Awaitable[None]:
    return _Wait(seconds, None)


def wait(signal: Signal, seconds: float | None = None) -> Awaitable[None]:
    """Until the signal fires or the time is over."""
    return _Wait(seconds, signal)


class Process:
    """A coroutine in virtual time. `on_end` gets its result, `on_error` what it raised."""

    def __init__(
        self,
        clock: Clock,
        work: Coroutine[Any, Any, Any],
        *,
        on_end: Callable[[Any], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self._clock = clock
        self._work = work
        self._on_end = on_end
        self._on_error = on_error
        self._turn = 0
        self._is_running = False
        self.alive = True
        clock.processes[self] = None
        clock.after(0.0, self.wake, 0)

    def wake(self, turn: int) -> None:
        if not self.alive or turn != self._turn:
            return
        self._turn += 1
        self._is_running = True
        try:
            asked = self._work.send(None)
        except StopIteration as end:
            self._end()
            if self._on_end:
                self._on_end(end.value)
        except Exception as error:
            self._end()
            if self._on_error is None:
                raise
            self._on_error(error)
        else:
            self._is_running = False
            if not self.alive:
                self._work.close()
                return
            if asked.seconds is not None:
                self._clock.after(asked.seconds, self.wake, self._turn)
            if asked.signal is not None:
                asked.signal.add(self, self._turn)

    def kill(self) -> None:
        """At once where it sleeps; a process that kills itself continues to its next pause."""
        if self.alive:
            self._end()
            if not self._is_running:
                self._work.close()

    def _end(self) -> None:
        self.alive = False
        self._clock.processes.pop(self, None)


def run_now(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never sleeps: a handler within its transaction."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise AssertionError(f"{work.__qualname__} waits within a transaction")
