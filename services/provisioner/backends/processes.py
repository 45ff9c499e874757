"""Processes by (pid, start time) and by a mark in their environment. Linux only: reads /proc."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
POLL_SECONDS = 0.02


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
        return fields is not None and fields[0] != "Z" and int(fields[19]) == self.start

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the group that this process leads, if it still does."""
        if self.is_alive():
            _ignoring_gone(os.killpg, self.pid, number)


def marked(mark: str) -> Iterator[int]:
    """Every process that carries `mark` (NAME=value) in its first environment, zombies left out."""
    wanted = mark.encode()
    for entry in PROC.iterdir():
        if entry.name.isdigit() and wanted in _environment(entry) and _is_running(int(entry.name)):
            yield int(entry.name)


async def kill_marked(mark: str, *, timeout_seconds: float) -> list[int]:
    """Kill until none is left, since one may fork while another dies. Returns those that would not go."""
    deadline = time.monotonic() + timeout_seconds
    while left := list(marked(mark)):
        if time.monotonic() > deadline:
            return left
        for pid in left:
            _ignoring_gone(os.kill, pid, signal.SIGKILL)
        await asyncio.sleep(POLL_SECONDS)
    return []


def _environment(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_running(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third (state) on."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _ignoring_gone(send: Callable[[int, int], None], pid: int, number: signal.Signals) -> None:
    try:
        send(pid, number)
    except ProcessLookupError:
        return
