"""The request to stop: a file or SIGTERM. It is only noted here; all processes act on it between micro batches."""

import signal
from pathlib import Path
from types import FrameType

from services.trainer_agent.protocol import STOP
from shared.failpoints import failpoint


class StopHeard(Exception):
    """All processes know that one of them was asked to stop. It is raised in all of them at once."""


class StopRequest:
    def __init__(self, work_dir: Path) -> None:
        self._file = work_dir / STOP
        self._signalled = False

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._note)

    @property
    def is_there(self) -> bool:
        return self._signalled or self._file.exists()

    @property
    def reason(self) -> str:
        return self._file.read_text().strip() if self._file.exists() else "SIGTERM"

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True
        failpoint("trainer.sigterm")
