"""Records are taken from Kafka's client one partition at a time, each in its turn.

aiokafka moves a partition's position as it takes its records, and forgets all that it took if the next partition
raises. Therefore each call takes from one partition: it takes no record, or hands over all that it took.
"""

from collections.abc import Collection
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CorruptRecordException

from shared.log import get_logger

log = get_logger(__name__)


class Turns:
    """Gives every partition with records one turn before any gets its second."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._left: Collection[TopicPartition] = ()
        """Partitions that had no turn in this round; empty when the next round begins."""

    async def take(self, *, wait_ms: int, max_records: int) -> list[Any]:
        """Return the records that came, in order within each partition, or none if none came in that time.

        If it raises, records taken before are lost: read again from the offset that was committed or kept.
        """
        taken = more = await self._take_one(wait_ms=wait_ms, max_records=max_records)
        while more and len(taken) < max_records:
            more = await self._take_one(wait_ms=0, max_records=max_records - len(taken))
            taken = [*taken, *more]
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
        try:
            batches = await self._consumer.getmany(
                *partitions, timeout_ms=timeout_ms, max_records=max_records
            )
        except CorruptRecordException as error:
            log.warning("a batch is fetched again", error=str(error))
            return []
        return [record for records in batches.values() for record in records]
