"""Processes by (pid, start time) and by session. Linux only: reads /proc."""

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

Finder = Callable[[], Iterable[int]]

_SESSION, _START = 3, 19


@dataclass(frozen=True)
class Identity:
    """A process that cannot be mistaken for a later one of the same pid."""

    pid: int
    start: int
    """Clock ticks since boot, field 22 of /proc/<pid>/stat."""

    @classmethod
    def parse(cls, text: str) -> "Identity":
        """The content of a pid file: `<pid> <start>`. Raises ValueError."""
        pid, start = text.split()
        return cls(int(pid), int(start))

    def is_alive(self) -> bool:
        fields = _stat(self.pid)
        return fields is not None and fields[0] != "Z" and int(fields[_START]) == self.start

    def session(self) -> Iterator[int]:
        """The live processes of the session that this process leads or led."""
        holder = _stat(self.pid)
        if holder is not None and int(holder[_START]) != self.start:
            return  # the pid is another's by now, so no process of the old session is left
        for pid in _pids():
            fields = _stat(pid)
            if fields is not None and int(fields[_SESSION]) == self.pid and fields[0] != "Z":
                yield pid


def marked(mark: str) -> Iterator[int]:
    """Every live process that carries `mark` (NAME=value) in its first environment."""
    wanted = mark.encode()
    for pid in _pids():
        fields = _stat(pid)
        if fields is not None and fields[0] != "Z" and wanted in _environment(pid):
            yield pid


async def kill_all(find: Finder, *, timeout_seconds: float) -> list[int]:
    """Kill until none is found, since one may fork while another dies. Returns those that would not go."""
    deadline = time.monotonic() + timeout_seconds
    while left := await asyncio.to_thread(lambda: sorted(set(find()))):
        if time.monotonic() > deadline:
            return left
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(POLL_SECONDS)
    return []


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third (state) on."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()
