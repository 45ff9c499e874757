"""The scoring child process: started without credentials, followed by its reports, ended when it hangs."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from services.evaluator.scoring.order import ORDER_FILE, SCORES_FILE, Scores, WorkOrder
from shared.errors import RetuneError
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.processes.environment import inherited

log = get_logger(__name__)

OnReport = Callable[[Mapping[str, Any]], None]
"""Takes up one report: `{"event": "progress", "part", "side", "done", "total"}` in items, or another event."""

REPOSITORY = Path(__file__).parents[3]
STDERR_FILE = "stderr.log"
LAST_WORDS_BYTES = 2000
MAX_LOG_BYTES = 1024 * 1024
MAX_LINE_BYTES = 1024 * 1024


class ScoringCrashed(RetuneError):
    """The child ended without scores; another try may end better."""


class ScoringChild:
    def __init__(self, *, threads: int | None, silence: timedelta, limit: timedelta) -> None:
        self._threads = threads
        self._silence = silence
        self._limit = limit

    async def score(
        self, order: WorkOrder, work_dir: Path, on_report: OnReport = lambda report: None
    ) -> Scores:
        """Run the order to its end, handing over each of the child's reports. Raises ScoringCrashed."""
        work_dir.mkdir(parents=True, exist_ok=True)
        (work_dir / ORDER_FILE).write_text(order.model_dump_json(), encoding="utf-8")
        scores = work_dir / SCORES_FILE
        scores.unlink(missing_ok=True)
        with (work_dir / STDERR_FILE).open("wb") as errors:
            process = await self._start(work_dir, errors)
            try:
                async with asyncio.timeout(self._limit.total_seconds()):
                    await self._follow(process, on_report)
                    code = await process.wait()
            except TimeoutError as error:
                raise ScoringCrashed(_hung(self._limit, work_dir)) from error
            finally:
                await _end(process)
        if code != 0 or not scores.exists():
            raise ScoringCrashed(f"scoring ended with exit code {code}: {_last_words(work_dir)}")
        return Scores.model_validate_json(scores.read_bytes())

    async def _start(self, work_dir: Path, errors: Any) -> Process:
        # The child ends when its standard input does, so it does not outlive a killed parent.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "services.evaluator.scoring", str(work_dir / ORDER_FILE)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            cwd=REPOSITORY,
            env=self._environment(work_dir),
            limit=MAX_LINE_BYTES,
            start_new_session=True,
        )

    def _environment(self, work_dir: Path) -> dict[str, str]:
        """It opens files that others made, so it gets no secret."""
        threads = {"OMP_NUM_THREADS": str(self._threads)} if self._threads else {}
        return inherited() | threads | {"HOME": str(work_dir)}

    async def _follow(self, process: Process, on_report: OnReport) -> None:
        """Read reports until the child closes its output. Raises TimeoutError after too long a silence."""
        assert process.stdout is not None
        while True:
            async with asyncio.timeout(self._silence.total_seconds()):
                line = await process.stdout.readline()
            if not line:
                return
            failpoint("eval.item.done")
            reported = json.loads(line)
            _log(reported)
            on_report(reported)


def log_of(work_dir: Path) -> bytes:
    """What the newest child of an order wrote to its standard error; the end of it where it is long."""
    try:
        return (work_dir / STDERR_FILE).read_bytes()[-MAX_LOG_BYTES:]
    except FileNotFoundError:
        return b""


def _log(report: Mapping[str, Any]) -> None:
    if report.get("done") == report.get("total"):
        details = {name: value for name, value in report.items() if name != "event"}
        log.info("scoring reported", report=report.get("event"), **details)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def _hung(limit: timedelta, work_dir: Path) -> str:
    return f"scoring was silent too long or over its limit of {limit}: {_last_words(work_dir)}"


def _last_words(work_dir: Path) -> str:
    raw = (work_dir / STDERR_FILE).read_bytes()[-LAST_WORDS_BYTES:]
    lines = raw.decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:]) or "it said nothing"
