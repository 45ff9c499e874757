"""The child's side of `reports.jsonl`."""

import logging
import os
import time
from pathlib import Path

from services.trainer_agent.protocol import REPORTS, Ended, Progressed, Report, Started, Stepped
from services.trainer_agent.training.distributed import World

ENDED = "ended"
PROGRESS_EVERY_SECONDS = 1.0
log = logging.getLogger(__name__)


class Reports:
    """Local rank 0 of every node reports; the end is reported by whichever process of the node ends first."""

    def __init__(self, work_dir: Path, world: World) -> None:
        self._path = work_dir / REPORTS
        self._end_mark = work_dir / ENDED
        self._reporting = world.local_rank == 0
        self._reported_at = time.monotonic()
        self.last_step = 0

    def send(self, report: Report) -> None:
        if isinstance(report, Started):
            self.last_step = report.start_step
        elif isinstance(report, Stepped):
            self.last_step = report.step
        if self._reporting:
            self._append(report)
            log.info("%s", report.model_dump_json())

    def progress(self, *, done: int, total: int) -> None:
        """Report micro batches, unless something was reported a moment ago."""
        if self._reporting and time.monotonic() - self._reported_at > PROGRESS_EVERY_SECONDS:
            self._append(Progressed(done=done, total=total))

    def end(self, ended: Ended) -> None:
        """Report the end once: when one process fails, its peers soon fail in turn, and the first knows the cause."""
        try:
            self._end_mark.touch(exist_ok=False)
        except FileExistsError:
            return
        self._append(ended)
        log.info("%s", ended.model_dump_json())

    def _append(self, report: Report) -> None:
        line = report.model_dump_json()
        # One write per line: a reader sees it whole or not at all, whoever else appends.
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode() + b"\n")
        finally:
            os.close(handle)
        self._reported_at = time.monotonic()
