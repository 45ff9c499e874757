"""Replay of parked messages that are next: the gap before them was read, or the message ahead of them is dealt with.

They are replayed automatically, one after another, however the event stream was read up to them.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from schemas.parked import ParkedResolved
from shared.log import get_logger
from shared.messaging import parking
from shared.messaging.unit import Unit
from shared.messaging.wake import WITHOUT_A_WAKE_SECONDS, wait_for_wake
from shared.postgres.database import Connection, Database, false_if_unavailable

log = get_logger(__name__)

REST_SECONDS = 1.0
"""Between two looks at every event stream with a parked message, however often the loop is woken."""

# Goes from one event stream to the next by the index. A message without a number holds back those parked after it.
# Where such a message was dropped, the position of the event stream is unknown: a gap stays a gap there.
DUE = """
    WITH RECURSIVE heads AS (
        (SELECT topic, aggregate_id, sequence, id, reason FROM parked
          WHERE state = 'parked' AND blocks ORDER BY topic, aggregate_id, sequence, id LIMIT 1)
        UNION ALL
        SELECT following.* FROM heads CROSS JOIN LATERAL (
            SELECT topic, aggregate_id, sequence, id, reason FROM parked
             WHERE state = 'parked' AND blocks
               AND (topic, aggregate_id) > (heads.topic, heads.aggregate_id)
             ORDER BY topic, aggregate_id, sequence, id LIMIT 1) AS following)
    SELECT heads.id FROM heads LEFT JOIN position USING (topic, aggregate_id)
     WHERE reason IN ('gap', 'behind_parked')
       AND CASE WHEN position.sequence IS NULL THEN reason = 'behind_parked'
                ELSE heads.sequence <= position.sequence + 1 END
       AND NOT EXISTS (
           SELECT FROM parked WHERE topic = heads.topic AND aggregate_id = heads.aggregate_id
              AND state = 'parked' AND blocks AND sequence IS NULL AND id < heads.id)"""


class Followers:
    """Hands the first parked message of each event stream to its handler again once it is the next."""

    def __init__(self, service: str, database: Database, consumer: Any, *, wake: Callable[[], None]) -> None:
        self._service = service
        self._database = database
        self._consumer = consumer
        self._wake = wake
        self.wake_event = asyncio.Event()

    async def run(self) -> None:
        while True:
            if not await false_if_unavailable(self._continue()):
                await asyncio.sleep(REST_SECONDS)
                await wait_for_wake(self.wake_event, at_most_seconds=WITHOUT_A_WAKE_SECONDS)

    async def _continue(self) -> bool:
        """Hand over due messages; return whether an event stream advanced, so that its next message may be due."""
        due = await self._database.fetch(DUE)
        outcomes = [await self._follow(row["id"]) for row in due]
        if outcomes:
            self._wake()
        return any(outcome != "parked" for outcome in outcomes)

    async def _follow(self, parked_id: int) -> str:
        async def resolve(conn: Connection) -> None:
            if await conn.fetchval(parking.RESOLVE, parked_id, "replayed"):
                unit = Unit(conn, self._service, self._database.now())
                await unit.emit(
                    ParkedResolved(
                        service=self._service,
                        parked_id=parked_id,
                        state="replayed",
                        reason="what was missing before it is there",
                    )
                )

        outcome = await parking.hand_over(self._database, self._consumer, parked_id, resolve=resolve)
        log.info("parked message followed", parked_id=parked_id, outcome=outcome)
        return outcome
