"""The outbox's way to Kafka: one relay per schema, under a lease. The only code that publishes facts."""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaTimeoutError, UnknownTopicOrPartitionError
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder

from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.delivery import topic_named
from shared.messaging.lease import Lease
from shared.messaging.poke import until_poked
from shared.messaging.presence import Answers, assumed_there, however_long_away, started, until_there
from shared.postgres.database import Database, unless_away
from shared.telemetry.metrics import OUTBOX_AGE, OUTBOX_ROWS, PUBLISHED

log = get_logger(__name__)

Result = TypeVar("Result")

BATCH_ROWS = 1_000
BATCHES_UNDER_WAY = 3
"""At most: handed over to Kafka's client and not yet marked."""
IDLE_POLL_SECONDS = 0.5
SEND_TIMEOUT_SECONDS = 30.0

# All but what is under way, and not what is beyond the last id: a lower one may be committed after a higher one.
READ = """
    SELECT id, topic, aggregate_id, sequence, headers, value FROM outbox
     WHERE id = ANY(ARRAY(
           SELECT id FROM (SELECT id FROM unpublished ORDER BY id LIMIT $2) AS first
           EXCEPT SELECT unnest($1::bigint[])))
     ORDER BY id"""

# Nobody waits for the disk: a mark that a crash of Postgres takes back is a record that is sent twice.
MARK = """
    WITH unflushed AS (SELECT set_config('synchronous_commit', 'off', true))
    DELETE FROM unpublished USING unflushed WHERE id = ANY($1)"""

BACKLOG = """
    SELECT count(*) AS rows, coalesce(extract(epoch FROM clock_timestamp() - (
           SELECT created_at FROM outbox WHERE id = (SELECT min(id) FROM unpublished))), 0) AS age
      FROM unpublished"""


class SendFailed(RuntimeError):
    """Kafka is there and did not take a batch. The rows stay in the outbox; the process ends and starts anew."""


class Relay:
    def __init__(
        self,
        database: Database,
        make_producer: Callable[[], AIOKafkaProducer],
        lease: Lease,
        *,
        service: str,
        renew_seconds: float,
        kafka_answers: Answers = assumed_there,
    ) -> None:
        self._database = database
        self._make_producer = make_producer
        self._lease = lease
        self._service = service
        self._renew_seconds = renew_seconds
        self._kafka_answers = kafka_answers
        self._renewed_at = 0.0
        self._under_way: deque[asyncio.Task[None]] = deque()
        self._ids: set[int] = set()
        """Of the rows that are under way."""
        self.poked = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. While Kafka is away it waits; any other failure to send ends the process."""
        await until_there(self._kafka_answers)
        async with started(self._make_producer(), self._kafka_answers) as producer:
            try:
                while True:
                    if not await unless_away(self._is_busy(producer)):
                        await until_poked(self.poked, at_most_seconds=IDLE_POLL_SECONDS)
            finally:
                for each in self._under_way:
                    each.cancel()
                await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _is_busy(self, producer: AIOKafkaProducer) -> bool:
        """Relay one batch; whether there may be more."""
        return await self._holds_lease() and await self._drain(producer) == BATCH_ROWS

    async def _holds_lease(self) -> bool:
        if self._lease.epoch is None or time.monotonic() - self._renewed_at > self._renew_seconds:
            await self._lease.hold()
            self._renewed_at = time.monotonic()
        return self._lease.epoch is not None

    async def _drain(self, producer: AIOKafkaProducer) -> int:
        """Send one batch in the order of the outbox. It is marked once every record is acknowledged."""
        rows = await self._database.fetch(READ, list(self._ids), len(self._ids) + BATCH_ROWS)
        if rows:
            failpoint("relay.read")
            acks = await self._in_time(len(rows), _hand_over(producer, rows))
            self._ids.update(row["id"] for row in rows)
            self._under_way.append(asyncio.create_task(self._finish(rows, acks)))
        # Behind a part of a batch nothing waits: to read on at once would make many small batches of one.
        most = BATCHES_UNDER_WAY - 1 if len(rows) >= BATCH_ROWS else 0
        while len(self._under_way) > most:
            await self._under_way.popleft()
        return len(rows)

    async def _finish(self, rows: Sequence[Any], acks: Sequence[Awaitable[Any]]) -> None:
        ids = [row["id"] for row in rows]
        try:
            await self._in_time(len(rows), asyncio.gather(*acks))
            failpoint("relay.sent")
            await self._database.execute(MARK, ids)
        finally:
            self._ids.difference_update(ids)
        failpoint("relay.marked")
        for topic, count in Counter(row["topic"] for row in rows).items():
            PUBLISHED.labels(self._service, topic).inc(count)

    async def _in_time(self, num_rows: int, work: Awaitable[Result]) -> Result:
        try:
            return await however_long_away(work, self._kafka_answers, seconds=SEND_TIMEOUT_SECONDS)
        except Exception as error:
            raise SendFailed(
                f"{num_rows} rows were not acknowledged: {type(error).__name__}: {error}"
            ) from error

    async def measure(self) -> float:
        """Set the backlog's metrics; the age in seconds of the oldest row not yet in Kafka."""
        row = await self._database.fetchrow(BACKLOG)
        assert row is not None
        OUTBOX_ROWS.labels(self._service).set(row["rows"])
        OUTBOX_AGE.labels(self._service).set(row["age"])
        return float(row["age"])


async def _hand_over(producer: AIOKafkaProducer, rows: Sequence[Any]) -> list[Awaitable[Any]]:
    """Put the rows behind all that the producer was given before; what is awaited for the acknowledgements."""
    by_partition = await _by_partition(producer, rows)
    acks = await asyncio.gather(
        *(_hand_over_partition(producer, *place, mine) for place, mine in by_partition.items())
    )
    return [ack for each in acks for ack in each]


async def _by_partition(producer: AIOKafkaProducer, rows: Sequence[Any]) -> dict[tuple[str, int], list[Any]]:
    """The rows of each topic's partition, in the order of the outbox."""
    by_partition: dict[tuple[str, int], list[Any]] = defaultdict(list)
    partitions = {
        name: sorted(await _insist(partial(producer.partitions_for, name)))
        for name in {row["topic"] for row in rows}
    }
    for row in rows:
        number = partitions[row["topic"]][_hash(row["aggregate_id"]) % len(partitions[row["topic"]])]
        by_partition[row["topic"], number].append(row)
    return by_partition


@lru_cache(maxsize=10_000)
def _hash(key: str) -> int:
    """Kafka's own, so that every client finds a key in the same partition; slow in Python, so remembered."""
    return int(murmur2(key.encode())) & 0x7FFFFFFF


async def _hand_over_partition(
    producer: AIOKafkaProducer, topic: str, partition: int, rows: list[Any]
) -> list[Awaitable[Any]]:
    """Batch by batch: single sends would make a future for every record."""
    is_story = topic_named(topic).is_story
    acks, batch = [], producer.create_batch()
    for row in rows:
        if not _append(batch, row, is_story):
            batch.close()
            acks.append(await _taken(producer, batch, topic, partition))
            batch = producer.create_batch()
            assert _append(batch, row, is_story), "an empty batch takes any record"
    batch.close()
    acks.append(await _taken(producer, batch, topic, partition))
    return acks


async def _taken(
    producer: AIOKafkaProducer, batch: BatchBuilder, topic: str, partition: int
) -> Awaitable[Any]:
    """What is awaited for the acknowledgement."""
    return await _insist(partial(producer.send_batch, batch, topic, partition=partition))


async def _insist(ask: Callable[[], Awaitable[Result]]) -> Result:
    """Again and again: who waits for us knows whether Kafka is away or takes nothing."""
    while True:
        try:
            return await ask()
        except (KafkaTimeoutError, UnknownTopicOrPartitionError) as error:
            log.warning("kafka takes no record yet", error=f"{type(error).__name__}: {error}")


def _append(batch: BatchBuilder, row: Any, is_story: bool) -> bool:
    """Whether there was room for it."""
    headers = list(zip(row["headers"], map(str.encode, row["headers"].values()), strict=True))
    if is_story:
        headers.append(("ce_sequence", str(row["sequence"]).encode()))
    added = batch.append(
        timestamp=None, key=row["aggregate_id"].encode(), value=row["value"], headers=headers
    )
    return added is not None
