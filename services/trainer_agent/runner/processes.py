"""The child's processes, wherever torchrun puts them: found by a mark in their environment. Reads /proc."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
POLL_SECONDS = 0.02


def marked(mark: str) -> Iterator[int]:
    """Every process that carries `mark` (NAME=value) in its first environment, zombies left out."""
    wanted = mark.encode()
    for entry in PROC.iterdir():
        if entry.name.isdigit() and wanted in _environment(entry) and _is_running(entry):
            yield int(entry.name)


def signal_marked(mark: str, number: signal.Signals) -> None:
    for pid in marked(mark):
        _send(pid, number)


def kill_marked(mark: str, *, timeout_seconds: float = 10.0) -> list[int]:
    """Kill until none is left, since one may fork while another dies. Returns those that would not go."""
    deadline = time.monotonic() + timeout_seconds
    while left := list(marked(mark)):
        if time.monotonic() > deadline:
            return left
        for pid in left:
            _send(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return []


def oom_kills() -> int:
    """How often the kernel killed for memory in our control group (version 1 or 2); 0 where nobody tells."""
    for line in _read(PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files = (Path(f"/sys/fs/cgroup{path}/memory.events"), Path("/sys/fs/cgroup/memory.events"))
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            files = (Path(f"{root}{path}/memory.oom_control"), root / "memory.oom_control")
        else:
            continue
        for file in files:
            counters = dict(entry.split(None, 1) for entry in _read(file).splitlines())
            if "oom_kill" in counters:
                return int(counters["oom_kill"])
    return 0


def _environment(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_running(entry: Path) -> bool:
    return _read(entry / "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
