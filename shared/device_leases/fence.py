"""The end of a process whose lease of devices is over: it ends itself, whatever became of who started it.

The file that RETUNE_LEASE_FILE names holds a time of the machine's monotonic clock, in seconds. Whoever has the
lease moves it on as long as the lease is extended.
"""

import os
import signal
import time
from pathlib import Path
from threading import Thread

from shared.files import write_whole

VARIABLE = "RETUNE_LEASE_FILE"
LOOK_SECONDS = 0.5


def extend(path: Path, seconds: float) -> None:
    """Let the processes that were given this file run for so long from now on; 0 ends them."""
    write_whole(path, f"{time.monotonic() + seconds}\n")


def end_with_lease() -> None:
    """Have this process and its group killed once its lease is over, if it was started with one."""
    if path := os.environ.get(VARIABLE):
        Thread(target=_watch, args=(Path(path),), name="lease", daemon=True).start()


def _watch(path: Path) -> None:
    until = 0.0
    while (until := _read(path, until)) > time.monotonic():
        time.sleep(LOOK_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _read(path: Path, before: float) -> float:
    """Return the time in the file; the one of before where it cannot be read."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return before
