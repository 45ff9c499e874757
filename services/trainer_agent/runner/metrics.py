"""Step metrics in batches. They gate nothing, so they never hold anything up, and the oldest are lost first."""

import asyncio
import math
from datetime import timedelta
from uuid import uuid4

from schemas.training import StepMetrics, StepsRecorded, StepValidated
from services.trainer_agent.runner.channel import Channel, NotAcknowledged
from shared.clock import utc_now

MAX_STEPS = 400
"""Most steps of one message, so that it stays small."""
MAX_KEPT_STEPS = 20_000
"""Most steps, and most validations, that are kept while Kafka is away."""


class MetricsBatch:
    def __init__(self, channel: Channel, *, job_id: str, tenant: str, attempt: int) -> None:
        self._channel = channel
        self._who = {"job_id": job_id, "tenant": tenant}
        self._attempt = attempt
        self._steps: list[StepMetrics] = []
        self._validations: list[StepValidated] = []

    def add(self, step: StepMetrics) -> None:
        self._steps.append(step)
        del self._steps[:-MAX_KEPT_STEPS]

    def add_validation(self, validation: StepValidated) -> None:
        self._validations.append(validation)
        del self._validations[:-MAX_KEPT_STEPS]

    async def run(self, *, every: timedelta) -> None:
        """Send batches until cancelled."""
        while True:
            await asyncio.sleep(every.total_seconds())
            await self.send()

    async def send(self) -> None:
        while self._steps or self._validations:
            steps, self._steps = self._steps[:MAX_STEPS], self._steps[MAX_STEPS:]
            validations, self._validations = self._due_with(steps)
            message = StepsRecorded(
                **self._who, attempt=self._attempt, steps=tuple(steps), validations=tuple(validations)
            )
            try:
                await self._channel.send(message, event_id=uuid4().hex, time=utc_now())
            except NotAcknowledged:
                self._steps = [*steps, *self._steps]
                self._validations = [*validations, *self._validations]
                return

    def _due_with(self, steps: list[StepMetrics]) -> tuple[list[StepValidated], list[StepValidated]]:
        """Return validations whose step no later batch has, at most as many as a message may have, and the others."""
        until = self._steps[0].step if self._steps else math.inf
        due = [each for each in self._validations if each.step < until][:MAX_STEPS]
        return due, self._validations[len(due) :]
