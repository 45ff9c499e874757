"""The end of a program on a node that may not run there any more: it ends itself, whatever became of who started it.

A cluster backend grants a node to its program by a file, or grants nothing; then silence of the platform decides.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from schemas.node import EXIT_FENCED
from shared.log import get_logger

log = get_logger(__name__)

GRANT_POLL_SECONDS = 0.5
FENCE_POLL_SECONDS = 0.3


@dataclass(frozen=True)
class Grant:
    """What the runner last read of its grant."""

    read_at: float
    """Monotonic seconds at which the newest successful read began."""
    is_withdrawn: bool = False


def why_fenced(
    *,
    acknowledged_at: float,
    grant: Grant | None,
    fence_after: timedelta,
    outage_limit: timedelta,
    now: float,
) -> str:
    """Return why this runner must end itself; empty where it may continue. Times are monotonic seconds.

    `acknowledged_at`: when the newest acknowledged heartbeat was sent. `grant`: None where the cluster backend grants
    nothing.
    """
    silence = timedelta(seconds=now - acknowledged_at)
    if silence >= (outage_limit if grant else fence_after):
        return f"no heartbeat was acknowledged for {silence}"
    if grant is None:
        return ""
    if grant.is_withdrawn:
        return "the cluster backend withdrew the grant of this node"
    unread = timedelta(seconds=now - grant.read_at)
    return f"the grant of this node could not be read for {unread}" if unread >= fence_after else ""


class GrantReader(threading.Thread):
    """Reads the grant again and again, in a thread of its own, since a read may hang."""

    def __init__(self, file: Path, *, node_id: str) -> None:
        super().__init__(name="grant", daemon=True)
        self._file = file
        self._node_id = node_id
        self.grant = Grant(read_at=time.monotonic())

    def run(self) -> None:
        while not self.grant.is_withdrawn:
            self.grant = self._read(time.monotonic())
            time.sleep(GRANT_POLL_SECONDS)

    def _read(self, began: float) -> Grant:
        try:
            holder = self._file.read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            holder = ""
        except (OSError, UnicodeError) as error:
            log.warning("grant not readable", error=f"{type(error).__name__}: {error}")
            return self.grant
        return Grant(began, is_withdrawn=holder != self._node_id)


class Fence(threading.Thread):
    """Ends this process, and its child first, as soon as there is a reason.

    It is a thread, so that it also acts where the event loop hangs.
    """

    def __init__(self, reason: Callable[[], str], *, end_child: Callable[[], None]) -> None:
        super().__init__(name="fence", daemon=True)
        self._reason = reason
        self._end_child = end_child

    def run(self) -> None:
        while not (reason := self._reason()):
            time.sleep(FENCE_POLL_SECONDS)
        log.error("this runner ends itself", reason=reason)
        self._end_child()
        os._exit(EXIT_FENCED)
