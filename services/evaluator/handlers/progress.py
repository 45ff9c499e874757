"""Publishing how far a running gate is, for people. Nothing waits for it, and nothing fails by it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from services.evaluator.decide.progress import Key, Meter, Progress, is_due
from services.evaluator.scoring.reports import Report
from shared.log import get_logger

log = get_logger(__name__)

Publish = Callable[[Progress], Coroutine[Any, Any, None]]


class ProgressPublisher:
    """Follows the scoring child's reports; `publish` is called for some of them, one call at a time."""

    def __init__(self, publish: Publish, rows: Mapping[Key, int]) -> None:
        self._publish = publish
        self._meter = Meter(rows, at=time.monotonic())
        self._published: Progress | None = None
        self._published_at = 0.0
        self._publishing: asyncio.Task[None] | None = None

    def update(self, report: Report) -> None:
        """Take in a report. What comes while a call is under way waits for the next report."""
        now = time.monotonic()
        self._meter = self._meter.after(report, now=now)
        progress = self._meter.progress
        is_busy = self._publishing is not None and not self._publishing.done()
        if not is_busy and is_due(self._published, progress, seconds_since=now - self._published_at):
            self._published, self._published_at = progress, now
            self._publishing = asyncio.create_task(self._publish(progress))
            self._publishing.add_done_callback(_log_failure)

    async def close(self) -> None:
        """Stop the call that is under way; none continues after this."""
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.gather(self._publishing, return_exceptions=True)


@asynccontextmanager
async def publishing(publish: Publish, rows: Mapping[Key, int]) -> AsyncIterator[ProgressPublisher]:
    publisher = ProgressPublisher(publish, rows)
    try:
        yield publisher
    finally:
        await publisher.close()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.warning("progress not published", error=f"{type(error).__name__}: {error}")
