"""Processes by (pid, start time), so that a recycled pid is never taken for ours. Linux only."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

# Places in /proc/<pid>/stat, counted from the third field on.
_STATE, _START = 0, 19


@dataclass(frozen=True, order=True)
class Identity:
    pid: int
    start: int
    """Start time in clock ticks since boot, field 22 of /proc/<pid>/stat.

    psutil's `create_time()` moves when the machine's clock is set, and pid files outlive that.
    """

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
        with suppress(ProcessLookupError):
            self._send(os.killpg if os.getpgid(self.pid) == self.pid else os.kill, number)

    def session(self) -> Iterator["Identity"]:
        """Yield the live processes of the session that this process leads or led."""
        holder = _stat(self.pid)
        if holder is not None and int(holder[_START]) != self.start:
            return  # the pid is another's by now, so no process of the old session is left
        for pid in psutil.pids():
            with suppress(ProcessLookupError):
                if os.getsid(pid) == self.pid and (process := Identity.of(pid)):
                    yield process

    def _send(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        if self.is_alive():
            with suppress(ProcessLookupError):
                send(self.pid, number)


def marked(mark: str) -> Iterator[Identity]:
    """Yield every live process but ours that carries `mark` (NAME=value) in its first environment."""
    name, _, value = mark.partition("=")
    for process in psutil.process_iter(["environ"]):
        has_mark = (process.info["environ"] or {}).get(name) == value
        if has_mark and process.pid != os.getpid() and (identity := Identity.of(process.pid)):
            yield identity


def with_sessions(processes: Iterable[Identity]) -> Iterator[Identity]:
    """Yield each process, and those of the session that it leads: a program may overwrite what it was marked by."""
    for process in processes:
        yield process
        yield from process.session()


def signal_marked(mark: str, number: signal.Signals) -> None:
    for process in marked(mark):
        process.signal_alone(number)


def recorded(folder: Path) -> list[Identity]:
    """Return the processes whose `pid` files lie below `folder`."""
    identities = []
    for directory, _, names in os.walk(folder):  # unlike glob, it bears folders that vanish meanwhile
        if "pid" in names:
            with suppress(
                ValueError, OSError
            ):  # gone, or of another program: the search by mark finds its process
                identities.append(Identity.parse(Path(directory, "pid").read_text()))
    return identities


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the third (state) on, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
