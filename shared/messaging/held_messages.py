"""Metrics of messages that may need an operator: parked ones that hold others back and ones that wait for long."""

from datetime import datetime

from shared.messaging.delivery import Unreadable, read
from shared.messaging.waiting import record_of
from shared.postgres.database import Database
from shared.telemetry.metrics import PARKED_BLOCKING, WAITING_AGE

BLOCKING = "SELECT count(*) FROM parked WHERE state = 'parked' AND blocks"
OLDEST = 'SELECT topic, partition, "offset", key, headers, value FROM waiting ORDER BY id LIMIT 1'


async def measure_held_messages(database: Database, service: str, *, now: datetime) -> int:
    """Set the metrics and return how many parked messages hold others back."""
    blocking = int(await database.fetchval(BLOCKING))
    PARKED_BLOCKING.labels(service).set(blocking)
    WAITING_AGE.labels(service).set(await _oldest_seconds(database, now))
    return blocking


async def _oldest_seconds(database: Database, now: datetime) -> float:
    row = await database.fetchrow(OLDEST)
    if row is None:
        return 0.0
    delivery = read(record_of(row))
    assert not isinstance(delivery, Unreadable), "only messages that were read can wait"
    return max(0.0, (now - delivery.envelope.time).total_seconds())
