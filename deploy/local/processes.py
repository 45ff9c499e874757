"""Processes by (pid, start time), so that a recycled pid is never taken for ours. Linux only: reads /proc."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
POLL_SECONDS = 0.05


@dataclass(frozen=True, order=True)
class Identity:
    pid: int
    start: int
    """Clock ticks since boot, field 22 of /proc/<pid>/stat."""

    def __str__(self) -> str:
        return f"{self.pid} {self.start}"

    @classmethod
    def parse(cls, text: str) -> "Identity":
        """The content of a pid file: `<pid> <start>`. Raises ValueError."""
        pid, start = text.split()
        return cls(int(pid), int(start))

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """Who has this pid now; None for nobody and for a zombie."""
        fields = _stat(pid)
        return cls(pid, int(fields[19])) if fields and fields[0] != "Z" else None

    def is_alive(self) -> bool:
        return Identity.of(self.pid) == self

    def leads_its_group(self) -> bool:
        fields = _stat(self.pid)
        return fields is not None and int(fields[2]) == self.pid

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process, with the group if it leads one; nothing if the pid is another's by now."""
        send = os.killpg if self.leads_its_group() else os.kill
        self._send(send, number)

    def signal_alone(self, number: signal.Signals) -> None:
        self._send(os.kill, number)

    def _send(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        if self.is_alive():
            with suppress(ProcessLookupError):
                send(self.pid, number)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third (state) on."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


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
    found = []
    for place, _, names in os.walk(folder):  # unlike glob, it bears folders that vanish meanwhile
        if "pid" in names:
            with suppress(ValueError, OSError):  # half written or gone: the sweep by mark finds its process
                found.append(Identity.parse(Path(place, "pid").read_text()))
    return found


def marked(mark: str) -> Iterator[Identity]:
    """Every process of this user that carries `mark` (NAME=value) in its first environment."""
    wanted = mark.encode()
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        if wanted in _environment(entry).split(b"\0") and (process := Identity.of(int(entry.name))):
            yield process


def _environment(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except OSError:
        return b""


def memory_bytes(pid: int) -> int:
    """Resident memory of one process; 0 if it is gone."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
