"""Ends processes of a stack and finds what it left. Linux only: reads /proc."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from shared.processes import PROC, Identity

POLL_SECONDS = 0.05


async def end(
    processes: Iterable[Identity], *, grace_seconds: float, first: signal.Signals
) -> list[Identity]:
    """Ask politely, wait, then kill. Returns those that had to be killed."""
    asked = sorted(process for process in set(processes) if process.is_alive())
    for process in asked:
        process.signal_group(first)
    await until(lambda: not any(process.is_alive() for process in asked), grace_seconds)
    stubborn = [process for process in asked if process.is_alive()]
    for process in stubborn:
        process.signal_group(signal.SIGKILL)
    await until(lambda: not any(process.is_alive() for process in stubborn), grace_seconds)
    return stubborn


async def until(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not (met := condition()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
    return met


def recorded(folder: Path) -> list[Identity]:
    """The detached processes (runners, replicas) whose `pid` files lie below `folder`."""
    identities = []
    for place, _, names in os.walk(folder):  # unlike glob, it bears folders that vanish meanwhile
        if "pid" in names:
            with suppress(ValueError, OSError):  # half written or gone: the sweep by mark finds its process
                identities.append(Identity.parse(Path(place, "pid").read_text()))
    return identities


def memory_bytes(pid: int) -> int:
    """Resident memory of one process; 0 if it is gone."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
