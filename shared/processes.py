"""Processes by (pid, start time), so that a recycled pid is never taken for ours. It reads /proc, so Linux only."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
POLL_SECONDS = 0.02

Finder = Callable[[], Iterable["Identity"]]

# Places in /proc/<pid>/stat, counted from the third field on.
_STATE, _GROUP, _SESSION, _START = 0, 2, 3, 19


@dataclass(frozen=True, order=True)
class Identity:
    pid: int
    start: int
    """Start time in clock ticks since boot, field 22 of /proc/<pid>/stat."""

    def __str__(self) -> str:
        return f"{self.pid} {self.start}"

    @classmethod
    def parse(cls, text: str) -> "Identity":
        """Parse the content of a pid file, `<pid> <start>`. Raises ValueError."""
        pid, start = text.split()
        return cls(int(pid), int(start))

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """Return the process that has this pid now, or None if there is none or it is a zombie."""
        fields = _stat(pid)
        return cls(pid, int(fields[_START])) if fields and fields[_STATE] != "Z" else None

    def is_alive(self) -> bool:
        return Identity.of(self.pid) == self

    def signal_alone(self, number: signal.Signals) -> None:
        self._send(os.kill, number)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process, with the group if it leads one; do nothing if another process has the pid by now."""
        fields = _stat(self.pid)
        leads = fields is not None and int(fields[_GROUP]) == self.pid
        self._send(os.killpg if leads else os.kill, number)

    def session(self) -> Iterator["Identity"]:
        """Yield the live processes of the session that this process leads or led."""
        holder = _stat(self.pid)
        if holder is not None and int(holder[_START]) != self.start:
            return  # the pid is another's by now, so no process of the old session is left
        for pid in _pids():
            fields = _stat(pid)
            if fields and int(fields[_SESSION]) == self.pid and fields[_STATE] != "Z":
                yield Identity(pid, int(fields[_START]))

    def _send(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        if self.is_alive():
            with suppress(ProcessLookupError):
                send(self.pid, number)


def marked(mark: str) -> Iterator[Identity]:
    """Yield every live process but ours that carries `mark` (NAME=value) in its first environment."""
    mark_bytes = mark.encode()
    for pid in _pids():
        is_other = pid != os.getpid()
        if is_other and mark_bytes in _environment(pid) and (process := Identity.of(pid)):
            yield process


def signal_marked(mark: str, number: signal.Signals) -> None:
    for process in marked(mark):
        process.signal_alone(number)


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


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the third (state) on, or None if there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
