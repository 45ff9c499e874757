"""One look at what is due in a service's schema, for all loops of a process: each that has something to do is woken.

If each loop asked on its own, an idle process would do little else.
"""

import asyncio

from shared.messaging.followers import Followers
from shared.messaging.relay import Relay
from shared.messaging.tasks import IS_DUE, Tasks
from shared.messaging.timers import Timers
from shared.messaging.waiting import WaitingMessages
from shared.postgres.database import Database, false_if_unavailable

POLL_SECONDS = 0.5
SHORTEST_SECONDS = 0.02

# The oldest row by its index: a scan would read the dead rows of a queue that was long before it finds none.
LOOK = f"""
    SELECT (SELECT id FROM unpublished ORDER BY id LIMIT 1) IS NOT NULL AS outbox,
           (SELECT id FROM waiting ORDER BY id LIMIT 1) IS NOT NULL AS waiting,
           EXISTS (SELECT FROM parked WHERE state = 'parked' AND blocks) AS parked,
           EXISTS (SELECT FROM task WHERE {IS_DUE}) AS task,
           (SELECT extract(epoch FROM fires_at - clock_timestamp()) FROM timer
             WHERE type = ANY($2) ORDER BY fires_at LIMIT 1)::float AS timer_in"""


class Due:
    """Looks at the tables of all loops, POLL_SECONDS apart, or sooner when the next timer is due."""

    def __init__(
        self,
        database: Database,
        *,
        relay: Relay,
        waiting: WaitingMessages,
        followers: Followers,
        tasks: Tasks,
        timers: Timers,
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._timers = timers
        self._wakes = {
            "outbox": relay.wake_event,
            "waiting": waiting.wake_event,
            "parked": followers.wake_event,
            "task": tasks.wake_event,
        }
        self._pause_seconds = POLL_SECONDS

    async def run(self) -> None:
        while True:
            self._pause_seconds = POLL_SECONDS
            await false_if_unavailable(self._look())
            await asyncio.sleep(self._pause_seconds)

    async def _look(self) -> bool:
        row = await self._database.fetchrow(LOOK, self._tasks.kinds, list(self._timers.handlers))
        assert row is not None, "a SELECT without FROM has one row"
        for name, event in self._wakes.items():
            if row[name]:
                event.set()
        timer_in = row["timer_in"]
        if timer_in is not None and timer_in <= 0:
            self._timers.wake_event.set()
        elif timer_in is not None:
            self._pause_seconds = min(POLL_SECONDS, max(SHORTEST_SECONDS, timer_in))
        return True
