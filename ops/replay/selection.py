"""Which records: of these topics, between two bounds, perhaps of one job."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from shared.messaging.delivery import Delivery, read
from shared.messaging.login import Login
from shared.messaging.partitions import READING_MS, PartitionReader
from shared.partition import Partition
from shared.record import Record

Bound = datetime | int | None
"""A time, an offset of each partition, or the beginning or end as it is now."""


@dataclass(frozen=True)
class Selection:
    topics: tuple[str, ...]
    since: Bound = None
    until: Bound = None
    """End of the selection, itself left out."""
    job_id: str | None = None

    async def read(self, login: Login) -> AsyncIterator[Record]:
        """Yield the records, in order within a partition. Partitions are assigned: no group knows of it."""
        async with PartitionReader(login, idle_ms=READING_MS) as reader:
            for topic in self.topics:
                async for record in self._read_topic(reader, topic):
                    if self._is_selected(record):
                        yield record

    async def _read_topic(self, reader: PartitionReader, topic: str) -> AsyncIterator[Record]:
        ranges = await self._ranges(reader, await reader.partitions(topic.__eq__))
        reader.assign({partition: offsets.start for partition, offsets in ranges.items()})
        while ranges and not await _reached(reader, ranges):
            for record in await reader.fetch():
                if record.offset < ranges[Partition(record.topic, record.partition)].stop:
                    yield record

    async def _ranges(self, reader: PartitionReader, partitions: list[Partition]) -> dict[Partition, range]:
        """Return the selected offsets of the partitions in which there are any."""
        in_log = await reader.ranges(partitions)
        starts = await _offsets(reader, self.since, partitions)
        stops = await _offsets(reader, self.until, partitions)
        selected = {
            partition: range(
                max(each.start, starts.get(partition, each.start)),
                min(each.stop, stops.get(partition, each.stop)),
            )
            for partition, each in in_log.items()
        }
        return {partition: offsets for partition, offsets in selected.items() if offsets}

    def _is_selected(self, record: Record) -> bool:
        if self.job_id is None or record.key == self.job_id.encode():
            return True
        delivery = read(record)
        return isinstance(delivery, Delivery) and getattr(delivery.message, "job_id", None) == self.job_id


async def _offsets(
    reader: PartitionReader, bound: Bound, partitions: list[Partition]
) -> dict[Partition, int]:
    if bound is None:
        return {}
    if isinstance(bound, int):
        return dict.fromkeys(partitions, bound)
    return await reader.offsets_at(int(bound.timestamp() * 1000), partitions)


async def _reached(reader: PartitionReader, ranges: Mapping[Partition, range]) -> bool:
    return all([await reader.position(partition) >= offsets.stop for partition, offsets in ranges.items()])
