"""Start of a service while its dependencies are unavailable: HTTP at once, its loops when Postgres answers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from shared.messaging.tasks import unavailable_dependency
from shared.postgres.database import Database, is_unavailable
from shared.retry import FOR_EVER, retry_until_available

Step = Callable[[], Awaitable[None]]

LOOK_SECONDS = 1.0
SLOW_SECONDS = 10.0
"""Time after which a service that has not started serves HTTP, though no dependency is known to be unavailable."""


class Startup:
    """A background task that opens the database and calls the hooks, waiting out unavailable dependencies."""

    def __init__(self, database: Database, hooks: Sequence[Step]) -> None:
        self._database = database
        self._hooks = hooks
        self._task = asyncio.create_task(self._open())

    @property
    def is_done(self) -> bool:
        return self._task.done() and not self._task.cancelled() and self._task.exception() is None

    async def wait_until_done_or_unavailable(self) -> None:
        """Wait until start-up is done, Postgres is unavailable or SLOW_SECONDS are over. Raises errors of hooks."""
        until = time.monotonic() + SLOW_SECONDS
        while not (await asyncio.wait({self._task}, timeout=LOOK_SECONDS))[0]:
            if self._database.away_seconds or time.monotonic() > until:
                return
        self._task.result()

    async def then(self, step: Step) -> None:
        await asyncio.shield(self._task)
        await step()

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _open(self) -> None:
        await retry_until_available(self._database.open, is_away=is_unavailable, retry_policy=FOR_EVER)
        for hook in self._hooks:
            await retry_until_available(hook, is_away=_is_away, retry_policy=FOR_EVER)


def _is_away(error: Exception) -> bool:
    return unavailable_dependency(error) is not None
