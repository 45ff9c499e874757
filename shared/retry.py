"""Retries while a dependency is unavailable, at growing intervals and up to a limit."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from shared.log import get_logger

log = get_logger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True)
class RetryPolicy:
    limit: timedelta = timedelta(hours=24)
    """Limit of one absence, after which the call has failed."""
    shortest: timedelta = timedelta(milliseconds=500)
    longest: timedelta = timedelta(seconds=30)

    def pause(self, away_for: timedelta) -> timedelta:
        """Return the absence so far, within bounds, less up to half of it, so that clients do not all ask at once."""
        bounded = min(max(away_for, self.shortest), self.longest)
        return bounded * random.uniform(0.5, 1.0)  # noqa: S311


A_DAY = RetryPolicy()
FOR_EVER = RetryPolicy(limit=timedelta.max, longest=timedelta(seconds=5))
"""Policy for dependencies without which a process cannot do anything."""


async def retry_until_available(
    call: Callable[[], Awaitable[Result]], *, is_away: Callable[[Exception], bool], retry_policy: RetryPolicy
) -> Result:
    """Return the call's result once its dependencies are available. Raises its error after the policy's limit."""
    away_since: float | None = None
    while True:
        try:
            return await call()
        except Exception as error:
            if not is_away(error):
                raise
            away_since = away_since or time.monotonic()
            away_for = timedelta(seconds=time.monotonic() - away_since)
            if away_for >= retry_policy.limit:
                raise
            log.warning("waits for what is away", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(retry_policy.pause(away_for).total_seconds())
