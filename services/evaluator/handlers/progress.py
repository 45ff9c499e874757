"""Telling people how far a running gate is. Nothing waits for it, and nothing fails by it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from services.evaluator.decide.progress import Key, Meter, Progress, is_due
from shared.log import get_logger

log = get_logger(__name__)

Tell = Callable[[Progress], Coroutine[Any, Any, None]]


class Teller:
    """Takes up the scoring child's reports; `tell` is called for some of them, one call at a time."""

    def __init__(self, tell: Tell, rows: Mapping[Key, int]) -> None:
        self._tell = tell
        self._meter = Meter(rows, at=time.monotonic())
        self._told: Progress | None = None
        self._told_at = 0.0
        self._telling: asyncio.Task[None] | None = None

    def note(self, report: Mapping[str, Any]) -> None:
        """What comes while a call is under way waits for the next report."""
        now = time.monotonic()
        self._meter = self._meter.after(report, now=now)
        progress = self._meter.progress
        is_busy = self._telling is not None and not self._telling.done()
        if not is_busy and is_due(self._told, progress, seconds_since=now - self._told_at):
            self._told, self._told_at = progress, now
            self._telling = asyncio.create_task(self._tell(progress))
            self._telling.add_done_callback(_log_failure)

    async def close(self) -> None:
        """No call goes on after this."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)


@asynccontextmanager
async def telling(tell: Tell, rows: Mapping[Key, int]) -> AsyncIterator[Teller]:
    teller = Teller(tell, rows)
    try:
        yield teller
    finally:
        await teller.close()


def _log_failure(telling: asyncio.Task[None]) -> None:
    if not telling.cancelled() and (error := telling.exception()):
        log.warning("progress not told", error=f"{type(error).__name__}: {error}")
