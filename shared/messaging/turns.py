"""Records from Kafka's client, one partition at a time, each in its turn.

aiokafka moves a partition's position as it takes its records, and forgets all that it took where the next partition
raises. So each call takes from one partition: it takes nothing, or hands over all that it took.
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
        """Those that had no turn in this round; empty where the next round begins."""

    async def take(self, *, wait_ms: int, max_records: int) -> list[Any]:
        """What has come, in order within each partition; empty where nothing came in that time.

        Where it raises, what was taken before is lost to its caller: read again from what was committed or kept.
        """
        taken = more = await self._take_one(wait_ms=wait_ms, max_records=max_records)
        while more and len(taken) < max_records:
            more = await self._take_one(wait_ms=0, max_records=max_records - len(taken))
            taken = [*taken, *more]
        return taken

    async def _take_one(self, *, wait_ms: int, max_records: int) -> list[Any]:
        """The next records of one partition."""
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
        """A batch that was damaged on its way is fetched again: then it is whole, or unreadable for good."""
        try:
            batches = await self._consumer.getmany(
                *partitions, timeout_ms=timeout_ms, max_records=max_records
            )
        except CorruptRecordException as error:
            log.warning("a batch is fetched again", error=str(error))
            return []
        return [record for records in batches.values() for record in records]
