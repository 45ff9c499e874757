"""One look at what is due in a service's schema, for all loops of a process: each that has something to do is woken.

If each loop asked on its own, an idle process would do little else.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from shared.postgres.database import Database, false_if_unavailable

POLL_SECONDS = 0.5
SHORTEST_SECONDS = 0.02
WITHOUT_A_WAKE_SECONDS = 10.0
"""A loop looks on its own after so long, in case that a wake was lost."""

# The oldest row by its index: a scan would read the dead rows of a queue that was long before it finds none.
LOOK = """
    SELECT EXISTS (SELECT FROM unpublished ORDER BY id LIMIT 1) AS outbox,
           EXISTS (SELECT FROM waiting ORDER BY id LIMIT 1) AS waiting,
           EXISTS (SELECT FROM parked
                    WHERE state = 'parked' AND blocks AND reason IN ('gap', 'behind_parked')) AS parked,
           EXISTS (SELECT FROM task
                    WHERE kind = ANY($1) AND not_before <= clock_timestamp() AND set_aside_at IS NULL
                      AND (lease_expires_at IS NULL OR lease_expires_at < clock_timestamp())) AS task,
           (SELECT extract(epoch FROM fires_at - clock_timestamp()) FROM timer
             WHERE type = ANY($2) ORDER BY fires_at LIMIT 1)::float AS timer_in"""


class Due:
    """Wakes by the name of what is due: `outbox`, `waiting`, `parked`, `task`, `timer`."""

    def __init__(
        self,
        database: Database,
        *,
        wakes: Mapping[str, asyncio.Event],
        task_kinds: Callable[[], Sequence[str]],
        timer_types: Callable[[], Sequence[str]],
    ) -> None:
        self._database = database
        self._wakes = wakes
        self._task_kinds = task_kinds
        self._timer_types = timer_types
        self._pause_seconds = POLL_SECONDS

    async def run(self) -> None:
        while True:
            self._pause_seconds = POLL_SECONDS
            await false_if_unavailable(self._look())
            await asyncio.sleep(self._pause_seconds)

    async def _look(self) -> bool:
        row = await self._database.fetchrow(LOOK, self._task_kinds(), self._timer_types())
        assert row is not None, "a SELECT without FROM has one row"
        for name in ("outbox", "waiting", "parked", "task"):
            if row[name]:
                self._wake(name)
        if row["timer_in"] is not None:
            if row["timer_in"] <= 0:
                self._wake("timer")
            else:
                self._pause_seconds = min(POLL_SECONDS, max(SHORTEST_SECONDS, row["timer_in"]))
        return True

    def _wake(self, name: str) -> None:
        if event := self._wakes.get(name):
            event.set()
