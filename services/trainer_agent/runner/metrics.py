"""Step metrics in batches. They gate nothing, so they never hold anything up, and the oldest are lost first."""

import asyncio
from datetime import timedelta
from uuid import uuid4

from schemas.training import StepMetrics, StepsRecorded
from services.trainer_agent.runner.channel import Channel, NotAcknowledged
from shared.clock import utc_now

MAX_STEPS = 400
"""Of one message, so that it stays small."""
MAX_KEPT_STEPS = 20_000
"""While Kafka is away."""


class MetricsBatch:
    def __init__(self, channel: Channel, *, job_id: str, tenant: str, attempt: int) -> None:
        self._channel = channel
        self._who = {"job_id": job_id, "tenant": tenant}
        self._attempt = attempt
        self._steps: list[StepMetrics] = []

    def add(self, step: StepMetrics) -> None:
        self._steps.append(step)
        del self._steps[:-MAX_KEPT_STEPS]

    async def run(self, *, every: timedelta) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(every.total_seconds())
            await self.send()

    async def send(self) -> None:
        while self._steps:
            batch, self._steps = self._steps[:MAX_STEPS], self._steps[MAX_STEPS:]
            message = StepsRecorded(**self._who, attempt=self._attempt, steps=tuple(batch))
            try:
                await self._channel.send(message, event_id=uuid4().hex, time=utc_now())
            except NotAcknowledged:
                self._steps = [*batch, *self._steps]
                return
