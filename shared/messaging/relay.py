"""The outbox's way to Kafka: one relay per schema, under a lease. The only code that publishes facts."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaProducer

from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.delivery import topic_named
from shared.messaging.lease import Lease
from shared.postgres.database import Database, is_unavailable
from shared.telemetry.metrics import OUTBOX_AGE, OUTBOX_ROWS, PUBLISHED

log = get_logger(__name__)

BATCH_ROWS = 500
IDLE_POLL_SECONDS = 0.5
SEND_TIMEOUT_SECONDS = 30.0

READ = """
    SELECT id, topic, aggregate_id, sequence, headers, value FROM outbox
     WHERE published_at IS NULL ORDER BY id LIMIT $1"""

MARK = "UPDATE outbox SET published_at = clock_timestamp() WHERE id = ANY($1)"

BACKLOG = """
    SELECT count(*) AS rows, coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0) AS age
      FROM outbox WHERE published_at IS NULL"""


class SendFailed(RuntimeError):
    """Kafka did not take a batch. The rows stay in the outbox; the process ends and starts anew."""


class Relay:
    def __init__(
        self,
        database: Database,
        make_producer: Callable[[], AIOKafkaProducer],
        lease: Lease,
        *,
        service: str,
        renew_seconds: float,
    ) -> None:
        self._database = database
        self._make_producer = make_producer
        self._lease = lease
        self._service = service
        self._renew_seconds = renew_seconds
        self._renewed_at = 0.0
        self.poked = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. Any failure to send ends the process: start-up is the recovery path."""
        async with self._make_producer() as producer:
            while True:
                if await self._is_idle(producer):
                    await self._until_poked()

    async def _is_idle(self, producer: AIOKafkaProducer) -> bool:
        """Relay one batch; whether there was no more, or Postgres is away."""
        try:
            return not await self._holds_lease() or await self._drain(producer) < BATCH_ROWS
        except Exception as error:
            if not is_unavailable(error):
                raise
            log.warning("database is away", error=f"{type(error).__name__}: {error}")
            return True

    async def _holds_lease(self) -> bool:
        if self._lease.epoch is None or time.monotonic() - self._renewed_at > self._renew_seconds:
            await self._lease.hold()
            self._renewed_at = time.monotonic()
        return self._lease.epoch is not None

    async def _drain(self, producer: AIOKafkaProducer) -> int:
        """Send one batch in the order of the outbox and mark it once every record is acknowledged."""
        rows = await self._database.fetch(READ, BATCH_ROWS)
        if not rows:
            return 0
        failpoint("relay.read")
        await _send_all(producer, rows)
        failpoint("relay.sent")
        await self._database.execute(MARK, [row["id"] for row in rows])
        failpoint("relay.marked")
        for topic, count in Counter(row["topic"] for row in rows).items():
            PUBLISHED.labels(self._service, topic).inc(count)
        return len(rows)

    async def _until_poked(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.poked.wait(), IDLE_POLL_SECONDS)
        self.poked.clear()

    async def measure(self) -> float:
        """Set the backlog's metrics; the age in seconds of the oldest row not yet in Kafka."""
        row = await self._database.fetchrow(BACKLOG)
        assert row is not None
        OUTBOX_ROWS.labels(self._service).set(row["rows"])
        OUTBOX_AGE.labels(self._service).set(row["age"])
        return float(row["age"])


async def _send_all(producer: AIOKafkaProducer, rows: list[Any]) -> None:
    try:
        async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
            acks = [await _send(producer, row) for row in rows]
            await asyncio.gather(*acks)
    except Exception as error:
        raise SendFailed(
            f"{len(rows)} rows were not acknowledged: {type(error).__name__}: {error}"
        ) from error


async def _send(producer: AIOKafkaProducer, row: Any) -> Any:
    """Hand the record to the producer; what it returns is awaited for the acknowledgement."""
    headers = [(name, value.encode()) for name, value in row["headers"].items()]
    if topic_named(row["topic"]).is_story:
        headers.append(("ce_sequence", str(row["sequence"]).encode()))
    key = row["aggregate_id"].encode()
    return await producer.send(row["topic"], value=row["value"], key=key, headers=headers)
