"""Records are taken from Kafka's client one partition at a time, each in its turn.

aiokafka moves a partition's position as it takes its records, and forgets all that it took if the next partition
raises. Therefore each call takes from one partition: it takes no record, or hands over all that it took.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CorruptRecordException

from shared.log import get_logger
from shared.messaging.delivery import topic_named
from shared.messaging.missing_offsets import NO_SUCH_OFFSET, MissingOffsets

log = get_logger(__name__)

DAY_SECONDS = 24 * 3600.0
PAUSE_SECONDS = 15.0
"""Time that a paused topic rests at least: the client forgets what it had fetched of it."""


class TenantLimit:
    """Pauses each tenant's topic that has brought as many records as are read of one in a day, refilled steadily.

    Whatever becomes of a record leaves rows, so this bounds what one tenant adds to the tables of all.
    """

    def __init__(self, records: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow `records` at once and as many in each day after that; `clock` is monotonic and in seconds."""
        self._records = records
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """Maps a topic to the records that may still be read, and when that was so."""
        self.paused: set[TopicPartition] = set()

    def count(self, records: Collection[Any]) -> None:
        for topic, number in Counter(record.topic for record in records).items():
            if topic_named(topic).tenant is not None:
                self._left[topic] = (self._left_of(topic) - number, self._clock())

    def apply(self, consumer: AIOKafkaConsumer) -> None:
        """Pause and resume partitions of the consumer; one that it was just assigned is not paused yet."""
        self.paused &= consumer.paused()
        for partition in consumer.assignment():
            if partition.topic not in self._left:
                continue
            left = self._left_of(partition.topic)
            if left < 1 and partition not in self.paused:
                consumer.pause(partition)
                self.paused.add(partition)
                log.warning(
                    "tenant's topic is paused",
                    topic=partition.topic,
                    partition=partition.partition,
                    records_a_day=self._records,
                )
            elif partition in self.paused and left >= max(1.0, PAUSE_SECONDS * self._records / DAY_SECONDS):
                consumer.resume(partition)
                self.paused.remove(partition)

    def _left_of(self, topic: str) -> float:
        left, since = self._left.get(topic, (float(self._records), self._clock()))
        return min(self._records, left + (self._clock() - since) * self._records / DAY_SECONDS)


class Turns:
    """Gives every partition with records one turn before any gets its second."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        *,
        limit: TenantLimit | None = None,
        missing: MissingOffsets | None = None,
    ) -> None:
        """`missing` gets the partitions whose offset Kafka does not have; without it they raise NO_SUCH_OFFSET."""
        self._consumer = consumer
        self._limit = limit
        self._missing = missing
        self._left: Collection[TopicPartition] = ()
        """Partitions that had no turn in this round; empty when the next round begins."""

    async def take(self, *, wait_ms: int, max_records: int) -> list[Any]:
        """Return the records that came, in order within each partition, or none if none came in that time.

        If it raises, records taken before are lost: read again from the offset that was committed or kept.
        """
        if self._limit is not None:
            self._limit.apply(self._consumer)
        taken = more = await self._take_one(wait_ms=wait_ms, max_records=max_records)
        while more and len(taken) < max_records:
            more = await self._take_one(wait_ms=0, max_records=max_records - len(taken))
            taken = [*taken, *more]
        if self._limit is not None:
            self._limit.count(taken)
        return taken

    async def _take_one(self, *, wait_ms: int, max_records: int) -> list[Any]:
        """Return the next records of one partition, or none if no partition has any."""
        while True:
            assigned = self._consumer.assignment()
            self._left = [each for each in self._left if each in assigned]
            first = await self._get(*self._left, timeout_ms=0 if self._left else wait_ms, max_records=1)
            if first:
                break
            if not self._left:
                return []
            self._left = ()
        partition = TopicPartition(first[0].topic, first[0].partition)
        self._left = [each for each in self._left or self._consumer.assignment() if each != partition]
        if max_records > 1 and partition in self._consumer.assignment():
            first += await self._get(partition, timeout_ms=0, max_records=max_records - 1)
        return first

    async def _get(self, *partitions: TopicPartition, timeout_ms: int, max_records: int) -> list[Any]:
        """Return records; a damaged batch gives none and is fetched again, then whole or unreadable for good."""
        while True:
            try:
                batches = await self._consumer.getmany(
                    *partitions, timeout_ms=timeout_ms, max_records=max_records
                )
            except CorruptRecordException as error:
                log.warning("a batch is fetched again", error=str(error))
                return []
            except NO_SUCH_OFFSET as error:
                if self._missing is None:
                    raise
                self._missing.add(error)
                timeout_ms = 0  # the other partitions of the same response raise theirs at once
            else:
                return [record for records in batches.values() for record in records]
