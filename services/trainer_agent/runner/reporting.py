"""Reports in order, each sent until it is acknowledged; heartbeats; and the end of a runner that must stop."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Literal
from uuid import uuid4

from schemas.base import Message
from schemas.training import REPORTS, RunnerHeartbeat, RunnerReport
from services.trainer_agent.runner.channel import Channel, NotAcknowledged
from services.trainer_agent.runner.journal import Acknowledged, Journal, Reported
from shared.clock import utc_now
from shared.log import get_logger

log = get_logger(__name__)

RETRY_SECONDS = 0.5


MAX_BEATS = 3
"""Most heartbeats under way at once: while Kafka is away, more of them would only say the same."""
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
        """Send reports until cancelled. What a previous life of this runner left unacknowledged goes first."""
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


class Heartbeat:
    """Sends heartbeats, and notes what the watchdog needs to know of them."""

    def __init__(self, channel: Channel, *, every: timedelta) -> None:
        self._channel = channel
        self._every_seconds = every.total_seconds()
        self._beats: set[asyncio.Task[None]] = set()
        self.acknowledged_at = time.monotonic()
        """Monotonic seconds at which the newest acknowledged heartbeat was sent."""

    async def run(self, beat: Callable[[], RunnerHeartbeat]) -> None:
        """Send heartbeats until cancelled. A beat does not wait for the one before it."""
        while True:
            if len(self._beats) < MAX_BEATS:
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
