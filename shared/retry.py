"""What to do while something that we depend on is away: ask again and again, ever more seldom, and not for ever."""

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
    """Of one absence; after it, what was asked for has failed."""
    shortest: timedelta = timedelta(milliseconds=500)
    longest: timedelta = timedelta(seconds=30)

    def pause(self, away_for: timedelta) -> timedelta:
        """As long as it was away so far, within bounds; up to half of it less, so that not all ask at once."""
        bounded = min(max(away_for, self.shortest), self.longest)
        return bounded * random.uniform(0.5, 1.0)  # noqa: S311


A_DAY = RetryPolicy()
FOR_EVER = RetryPolicy(limit=timedelta.max, longest=timedelta(seconds=5))
"""For what a process cannot do anything without."""


async def retry_until_available(
    call: Callable[[], Awaitable[Result]], *, is_away: Callable[[Exception], bool], patience: RetryPolicy
) -> Result:
    """What the call gives once nothing that it needs is away. Raises its error at the end of the patience."""
    away_since: float | None = None
    while True:
        try:
            return await call()
        except Exception as error:
            if not is_away(error):
                raise
            away_since = away_since or time.monotonic()
            away_for = timedelta(seconds=time.monotonic() - away_since)
            if away_for >= patience.limit:
                raise
            log.warning("waits for what is away", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(patience.pause(away_for).total_seconds())
