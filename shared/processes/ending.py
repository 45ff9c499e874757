"""How processes are ended: asked with a signal and given time, then killed."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterable

from shared.processes.identity import Identity, marked

POLL_SECONDS = 0.02

Finder = Callable[[], Iterable[Identity]]


async def end(
    processes: Iterable[Identity], *, grace_seconds: float, first: signal.Signals
) -> list[Identity]:
    """Ask the processes to end, wait, then kill. Returns those that had to be killed."""
    stubborn = await ask_to_end(processes, grace_seconds=grace_seconds, first=first)
    await ask_to_end(stubborn, grace_seconds=grace_seconds, first=signal.SIGKILL)
    return stubborn


async def ask_to_end(
    processes: Iterable[Identity], *, grace_seconds: float, first: signal.Signals
) -> list[Identity]:
    """Signal each process, or the group that it leads. Returns those that still live after the grace."""
    asked = sorted(process for process in set(processes) if process.is_alive())
    for process in asked:
        process.signal_group(first)
    await until(lambda: not any(process.is_alive() for process in asked), grace_seconds)
    return [process for process in asked if process.is_alive()]


async def until(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not (is_met := condition()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
    return is_met


def kill_marked(mark: str, *, timeout_seconds: float) -> list[int]:
    """Kill all processes that carry `mark` and return the pids of those left after the time-out."""
    return kill_all(lambda: marked(mark), timeout_seconds=timeout_seconds)


def kill_all(find: Finder, *, timeout_seconds: float) -> list[int]:
    """Kill until none is found, since one may fork while another dies. Returns the pids left after the time-out."""
    deadline = time.monotonic() + timeout_seconds
    while left := sorted(set(find())):
        if time.monotonic() > deadline:
            return [process.pid for process in left]
        for process in left:
            process.signal_alone(signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return []
