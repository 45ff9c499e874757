"""The relay from the outbox to Kafka: one per schema, under a lease. It is the only code that publishes facts.

A row that the broker refuses for the row's own fault is set aside, with those behind it of the same aggregate: a
later fact without the one before it would be parked by all its readers.
"""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTimestampError,
    KafkaConnectionError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    UnknownTopicOrPartitionError,
)
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder

from schemas.envelope import MAX_FACT_BYTES
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.delivery import topic_named
from shared.messaging.kafka_health import (
    POLL_SECONDS,
    Answers,
    always_available,
    await_through_outage,
    started,
    wait_until_available,
)
from shared.messaging.lease import Lease
from shared.messaging.wake import wait_for_wake
from shared.postgres.database import Database, false_if_unavailable
from shared.telemetry.metrics import OUTBOX_AGE, OUTBOX_ROWS, OUTBOX_SET_ASIDE, PUBLISHED
from shared.text import storable

log = get_logger(__name__)

Result = TypeVar("Result")

BATCH_ROWS = 1_000
BATCHES_UNDER_WAY = 3
"""Limit of the batches that were handed over to Kafka's client and are not yet marked."""
SEND_TIMEOUT_SECONDS = 30.0
LARGE_BYTES = MAX_FACT_BYTES
"""Size that no newly written message exceeds; an older, larger one may be more than the broker takes."""
REFUSALS = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTimestampError, PolicyViolationError)
"""Errors with which a broker refuses a batch that it will never take."""

# Excludes rows under way by their ids and not by the last id: a lower id may be committed after a higher one.
READ = """
    SELECT id, topic, aggregate_id, sequence, type, headers, value,
           EXISTS (SELECT FROM set_aside
                    WHERE set_aside.topic = outbox.topic AND set_aside.aggregate_id = outbox.aggregate_id) AS is_held
      FROM outbox
     WHERE id = ANY(ARRAY(
           SELECT id FROM (SELECT id FROM unpublished ORDER BY id LIMIT $2) AS first
           EXCEPT SELECT unnest($1::bigint[])))
     ORDER BY id"""

# The commit does not wait for the disk: if a crash of Postgres loses a mark, a record is sent twice.
MARK = """
    WITH unflushed AS (SELECT set_config('synchronous_commit', 'off', true))
    DELETE FROM unpublished USING unflushed WHERE id = ANY($1)"""

SET_ASIDE = """
    WITH taken AS (DELETE FROM unpublished WHERE id = ANY($1) RETURNING id)
    INSERT INTO set_aside (id, topic, aggregate_id, detail)
    SELECT id, topic, aggregate_id, $2 FROM outbox JOIN taken USING (id) ON CONFLICT DO NOTHING"""

# The event that held a row may have been dropped or sent again since the row was read; then the row is read again.
SET_ASIDE_BEHIND = """
    WITH taken AS (
        DELETE FROM unpublished USING outbox
         WHERE unpublished.id = ANY($1) AND outbox.id = unpublished.id
           AND EXISTS (SELECT FROM set_aside
                        WHERE set_aside.topic = outbox.topic AND set_aside.aggregate_id = outbox.aggregate_id)
        RETURNING outbox.id, topic, aggregate_id)
    INSERT INTO set_aside (id, topic, aggregate_id, detail)
    SELECT id, topic, aggregate_id, 'behind an event of the same aggregate that was set aside' FROM taken
    ON CONFLICT DO NOTHING"""

BACKLOG = """
    SELECT count(*) AS rows, (SELECT count(*) FROM set_aside) AS set_aside,
           coalesce(extract(epoch FROM clock_timestamp() - (
           SELECT created_at FROM outbox WHERE id = (SELECT min(id) FROM unpublished))), 0) AS age
      FROM unpublished"""


class SendFailed(RuntimeError):
    """Kafka is available but did not take a batch. The rows stay in the outbox; the process ends and is restarted."""


@dataclass(frozen=True)
class _Batch:
    """Rows that Kafka takes or refuses together."""

    rows: Sequence[Any]
    ack: Awaitable[Any]


class _Refused(Exception):
    """Kafka will never take a batch. Its producer cannot be used again: it has counted the records of that batch."""

    def __init__(self, rows: Sequence[Any], error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.rows = rows


class Relay:
    def __init__(
        self,
        database: Database,
        make_producer: Callable[[], AIOKafkaProducer],
        lease: Lease,
        *,
        service: str,
        renew_seconds: float,
        kafka_answers: Answers = always_available,
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
        """Ids of the rows that were handed over to Kafka's client and are not yet marked."""
        self._alone: set[int] = set()
        """Ids of rows to send each in its own batch with no row behind it in flight: one of them was refused."""
        self.wake_event = asyncio.Event()

    async def run(self) -> None:
        """Relay until cancelled, waiting while Kafka is unavailable.

        Raises SendFailed, which ends the process, for a failure to send that is no row's own.
        """
        while True:
            await wait_until_available(self._kafka_answers)
            try:
                async with started(self._make_producer(), self._kafka_answers) as producer:
                    refused = await self._send_until_refused(producer)
            except KafkaConnectionError as error:  # it was lost between its answer and the producer's start
                log.warning("kafka is away again", error=str(error))
                await asyncio.sleep(POLL_SECONDS)
                continue
            while not await false_if_unavailable(self._isolate(refused)):
                await wait_for_wake(self.wake_event, at_most_seconds=self._renew_seconds)

    async def _send_until_refused(self, producer: AIOKafkaProducer) -> _Refused:
        try:
            while True:
                if not await false_if_unavailable(self._is_busy(producer)):
                    await wait_for_wake(self.wake_event, at_most_seconds=self._renew_seconds)
        except _Refused as refused:
            return refused
        finally:
            for each in self._under_way:
                each.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)
            self._under_way.clear()
            self._ids.clear()

    async def _isolate(self, refused: _Refused) -> bool:
        """Set aside the row that was refused; if it is one of several, mark each of them to be sent alone."""
        if len(refused.rows) > 1:
            self._alone.update(row["id"] for row in refused.rows)
            return True
        (row,) = refused.rows
        await self._database.execute(SET_ASIDE, [row["id"]], storable(str(refused)))
        self._alone.discard(row["id"])
        log.error(
            "kafka refused an event, which is set aside",
            topic=row["topic"],
            key=row["aggregate_id"],
            value_bytes=len(row["value"]),
            error=str(refused),
        )
        return True

    async def _is_busy(self, producer: AIOKafkaProducer) -> bool:
        """Relay one batch and return whether there may be more."""
        return await self._holds_lease() and await self._drain(producer)

    async def _holds_lease(self) -> bool:
        if self._lease.token is None or time.monotonic() - self._renewed_at > self._renew_seconds:
            await self._lease.hold()
            self._renewed_at = time.monotonic()
        return self._lease.token is not None

    async def _drain(self, producer: AIOKafkaProducer) -> bool:
        """Send one batch in the order of the outbox; it is marked once every record is acknowledged."""
        rows = await self._database.fetch(READ, list(self._ids), len(self._ids) + BATCH_ROWS)
        if held := [row for row in rows if row["is_held"]]:
            await self._database.execute(SET_ASIDE_BEHIND, [row["id"] for row in held])
        free = [row for row in rows if not row["is_held"]]
        ready = self._before_first_suspect(free)
        if ready:
            failpoint("relay.read")
            batches = await self._with_timeout(len(ready), _enqueue(producer, ready))
            self._ids.update(row["id"] for row in ready)
            self._under_way.append(asyncio.create_task(self._finish(ready, batches)))
        # After a partial batch all are awaited: reading on at once would make many small batches of one.
        most = BATCHES_UNDER_WAY - 1 if len(ready) >= BATCH_ROWS else 0
        while len(self._under_way) > most:
            await self._under_way.popleft()
        return len(rows) >= BATCH_ROWS or len(ready) < len(free)

    def _before_first_suspect(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows before the first that may be refused, or that one alone: no later row is sent before."""
        for index, row in enumerate(rows):
            if row["id"] in self._alone or len(row["value"]) > LARGE_BYTES:
                return rows[: max(1, index)] if not self._under_way or index else []
        return rows

    async def _finish(self, rows: Sequence[Any], batches: Sequence[_Batch]) -> None:
        ids = [row["id"] for row in rows]
        acks = {asyncio.ensure_future(each.ack): each for each in batches}
        try:
            done, _ = await self._with_timeout(
                len(rows), asyncio.wait(acks, return_when=asyncio.FIRST_EXCEPTION)
            )
            taken = {ack: acks[ack] for ack in done if ack.exception() is None}
            failpoint("relay.sent")
            await self._database.execute(MARK, [row["id"] for each in taken.values() for row in each.rows])
            _require_acknowledged({ack: acks[ack] for ack in done if ack not in taken}, len(rows))
        finally:
            self._ids.difference_update(ids)
        self._alone.difference_update(ids)
        failpoint("relay.marked")
        for (topic, kind), count in Counter((row["topic"], row["type"]) for row in rows).items():
            PUBLISHED.labels(self._service, topic, kind).inc(count)

    async def _with_timeout(self, num_rows: int, work: Awaitable[Result]) -> Result:
        try:
            return await await_through_outage(work, self._kafka_answers, seconds=SEND_TIMEOUT_SECONDS)
        except Exception as error:
            raise SendFailed(
                f"{num_rows} rows were not acknowledged: {type(error).__name__}: {error}"
            ) from error

    async def measure(self) -> float:
        """Set the backlog's metrics and return the age in seconds of the oldest row not yet in Kafka."""
        row = await self._database.fetchrow(BACKLOG)
        assert row is not None
        OUTBOX_ROWS.labels(self._service).set(row["rows"])
        OUTBOX_SET_ASIDE.labels(self._service).set(row["set_aside"])
        OUTBOX_AGE.labels(self._service).set(row["age"])
        return float(row["age"])


def _require_acknowledged(failed: Mapping[asyncio.Future[Any], _Batch], num_rows: int) -> None:
    """Raise _Refused for the first batch that Kafka will never take, or SendFailed if no batch is at fault."""
    for ack, batch in failed.items():
        if isinstance(error := ack.exception(), REFUSALS):
            raise _Refused(batch.rows, error)
    for ack in failed:
        error = ack.exception()
        raise SendFailed(f"{num_rows} rows were not acknowledged: {type(error).__name__}: {error}") from error


async def _enqueue(producer: AIOKafkaProducer, rows: Sequence[Any]) -> list[_Batch]:
    """Give the rows to the producer, behind all that it was given before."""
    by_partition = await _by_partition(producer, rows)
    batches = await asyncio.gather(
        *(_enqueue_partition(producer, *partition, mine) for partition, mine in by_partition.items())
    )
    return [batch for each in batches for batch in each]


async def _by_partition(producer: AIOKafkaProducer, rows: Sequence[Any]) -> dict[tuple[str, int], list[Any]]:
    """Group the rows by topic and partition, in the order of the outbox."""
    by_partition: dict[tuple[str, int], list[Any]] = defaultdict(list)
    partitions = {
        name: sorted(await _retry_send(partial(producer.partitions_for, name)))
        for name in {row["topic"] for row in rows}
    }
    for row in rows:
        number = partitions[row["topic"]][_hash(row["aggregate_id"]) % len(partitions[row["topic"]])]
        by_partition[row["topic"], number].append(row)
    return by_partition


@lru_cache(maxsize=10_000)
def _hash(key: str) -> int:
    """Return Kafka's own hash, which gives a key one partition for all clients; cached because Python is slow."""
    return int(murmur2(key.encode())) & 0x7FFFFFFF


async def _enqueue_partition(
    producer: AIOKafkaProducer, topic: str, partition: int, rows: list[Any]
) -> list[_Batch]:
    """Enqueue the rows in batches, because single sends would make a future for every record."""
    batches = []
    for builder, mine in _batches(producer, rows, is_event_stream=topic_named(topic).is_event_stream):
        builder.close()
        batches.append(_Batch(mine, await _enqueue_batch(producer, builder, topic, partition)))
    return batches


def _batches(
    producer: AIOKafkaProducer, rows: Sequence[Any], *, is_event_stream: bool
) -> Iterator[tuple[BatchBuilder, list[Any]]]:
    builder, mine = producer.create_batch(), list[Any]()
    for row in rows:
        if not _append(builder, row, is_event_stream):
            yield builder, mine
            builder, mine = producer.create_batch(), []
            assert _append(builder, row, is_event_stream), "an empty batch takes any record"
        mine.append(row)
    yield builder, mine


async def _enqueue_batch(
    producer: AIOKafkaProducer, batch: BatchBuilder, topic: str, partition: int
) -> Awaitable[Any]:
    """Enqueue the batch and return an awaitable of its acknowledgement."""
    return await _retry_send(partial(producer.send_batch, batch, topic, partition=partition))


async def _retry_send(ask: Callable[[], Awaitable[Result]]) -> Result:
    """Retry without a limit: the caller's timeout shows whether Kafka is unavailable or takes no records."""
    while True:
        try:
            return await ask()
        except (KafkaTimeoutError, UnknownTopicOrPartitionError) as error:
            log.warning("kafka takes no record yet", error=f"{type(error).__name__}: {error}")


def _append(batch: BatchBuilder, row: Any, is_event_stream: bool) -> bool:
    """Append the row and return whether there was room for it."""
    headers = list(zip(row["headers"], map(str.encode, row["headers"].values()), strict=True))
    if is_event_stream:
        headers.append(("ce_sequence", str(row["sequence"]).encode()))
    added = batch.append(
        timestamp=None, key=row["aggregate_id"].encode(), value=row["value"], headers=headers
    )
    return added is not None
