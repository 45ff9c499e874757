"""Reports in order, each sent until it is acknowledged; heartbeats; and the end of a runner nobody hears."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Literal
from uuid import uuid4

from schemas.base import Message
from schemas.training import REPORTS, RunnerHeartbeat, RunnerReport
from services.trainer_agent.runner.channel import Channel, NotAcknowledged
from services.trainer_agent.runner.decide import EXIT_FENCED
from services.trainer_agent.runner.journal import Acknowledged, Journal, Reported
from shared.clock import utc_now
from shared.log import get_logger

log = get_logger(__name__)

RETRY_SECONDS = 0.5
State = Literal["waiting", "fetching", "training", "stopping"]


class Reporter:
    """Journals a report before anyone may act on it, and sends what the journal has in its order."""

    def __init__(self, channel: Channel, journal: Journal) -> None:
        self._channel = channel
        self._journal = journal
        self._added = asyncio.Event()
        self._sent = asyncio.Event()

    def add(self, report: RunnerReport) -> None:
        self._journal.add(
            Reported(id=uuid4().hex, type=report.type, time=utc_now(), payload=report.model_dump(mode="json"))
        )
        self._added.set()

    async def run(self) -> None:
        """Until cancelled. What a previous life of this runner left unacknowledged goes first."""
        while True:
            self._added.clear()
            for report in self._journal.unacknowledged:
                await self._send(report)
                self._journal.add(Acknowledged(id=report.id))
            self._sent.set()
            await self._added.wait()
            self._sent.clear()

    async def all_sent(self) -> None:
        """Return when every report so far is acknowledged."""
        while self._journal.unacknowledged:
            self._sent.clear()
            await self._sent.wait()

    async def _send(self, report: Reported) -> None:
        message = REPORTS[report.type].model_validate(report.payload)
        while True:
            try:
                return await self._channel.send(message, event_id=report.id, time=report.time)
            except NotAcknowledged:
                await asyncio.sleep(RETRY_SECONDS)


class Pulse:
    """Heartbeats, and what the fence needs to know of them."""

    def __init__(self, channel: Channel, *, every: timedelta) -> None:
        self._channel = channel
        self._every_seconds = every.total_seconds()
        self._beats: set[asyncio.Task[None]] = set()
        self.acknowledged_at = time.monotonic()
        """When the newest acknowledged heartbeat was sent."""

    async def run(self, beat: Callable[[], RunnerHeartbeat]) -> None:
        """Until cancelled. A beat does not wait for the one before it."""
        while True:
            task = asyncio.create_task(self._send(beat()))
            self._beats.add(task)
            task.add_done_callback(self._beats.discard)
            await asyncio.sleep(self._every_seconds)

    async def _send(self, message: Message) -> None:
        sent_at = time.monotonic()
        try:
            await self._channel.send(message, event_id=uuid4().hex, time=utc_now())
        except NotAcknowledged:
            return
        self.acknowledged_at = max(self.acknowledged_at, sent_at)


class Fence(threading.Thread):
    """Ends this process, and its child first, once the control side must take it for gone.

    A thread, so that it also acts where the event loop hangs.
    """

    def __init__(self, pulse: Pulse, *, after: timedelta, end_child: Callable[[], None]) -> None:
        super().__init__(name="fence", daemon=True)
        self._pulse = pulse
        self._after_seconds = after.total_seconds()
        self._end_child = end_child

    def run(self) -> None:
        while (silence := time.monotonic() - self._pulse.acknowledged_at) < self._after_seconds:
            time.sleep(min(1.0, self._after_seconds / 10))
        log.error("no heartbeat was acknowledged; this runner ends itself", silent_seconds=round(silence, 1))
        self._end_child()
        os._exit(EXIT_FENCED)
