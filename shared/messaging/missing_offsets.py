"""Offsets that Kafka does not have: records that were deleted before a service read them are reported.

The client of a service is kept from choosing an offset itself (`auto_offset_reset="none"`): where its own is outside
the log it would continue at the first record, and log nothing of what retention deleted before that.
"""

from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError

from shared.log import get_logger
from shared.messaging.topic_ids import TopicIds
from shared.telemetry.metrics import RECORDS_LOST

log = get_logger(__name__)

NO_SUCH_OFFSET = (OffsetOutOfRangeError, NoOffsetForPartitionError)
"""What the client raises, partition by partition, until it has a position to read at."""
RECORDS_GONE = "records were gone before they were read"
LOG_CUT = "the log ends before what was read"


class MissingOffsets:
    """The partitions that a service cannot read at the offset that it has for them."""

    def __init__(self, ids: TopicIds, *, group: str) -> None:
        self._ids = ids
        self._group = group
        self.partitions: dict[TopicPartition, int | None] = {}
        """Maps each to the offset that its log does not have; None where the group has none."""

    def add(self, error: Exception) -> None:
        """Add the partition of one of the errors NO_SUCH_OFFSET."""
        (offsets,) = error.args
        self.partitions |= offsets if isinstance(offsets, dict) else {offsets: None}

    async def read_from_start(self, consumer: Any) -> None:
        """Seek to the first record of each of these partitions, and report the records that are gone."""
        # Where the topic was created again, the offset is that of another log.
        ours = consumer.assignment() - self._ids.strange
        first = await self._ids.first_offsets(consumer, [each for each in self.partitions if each in ours])
        missing = {each: self.partitions[each] for each in first}
        await self._report(consumer, missing, first)
        for each in missing.keys() & consumer.assignment():
            consumer.seek(each, first[each])
        self.partitions.clear()

    async def _report(
        self, consumer: Any, missing: dict[TopicPartition, int | None], first: dict[TopicPartition, int]
    ) -> None:
        """Log and count what is gone. It is committed in between, so that it is not reported at each start."""
        gone = {
            each: first[each] - offset
            for each, offset in missing.items()
            if offset is not None and offset < first[each]
        }
        for each, offset in missing.items():
            if offset is not None:
                log.error(
                    RECORDS_GONE if each in gone else LOG_CUT,
                    topic=each.topic,
                    partition=each.partition,
                    read_up_to=offset,
                    log_start=first[each],
                )
        if gone:
            await consumer.commit(self._ids.with_ids({each: first[each] for each in gone}))
        for each, count in gone.items():
            RECORDS_LOST.labels(self._group, each.topic).inc(count)
