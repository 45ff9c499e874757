"""Reading of assigned partitions from offsets that the caller keeps, without a group and without commits."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from shared.messaging.kafka import record_of_kafka, sasl
from shared.messaging.login import Login
from shared.messaging.turns import Turns
from shared.partition import Partition
from shared.record import Record

POLL_MILLISECONDS = 200
MAX_PARTITION_BYTES = 256 * 1024
"""Limit of one partition's bytes that wait in memory; a larger record comes alone."""
MAX_FETCH_BYTES = 8 * 1024 * 1024
READING_MS = 50
"""`idle_ms` of who reads to an end."""
MAX_RECORDS = 2_000
"""Number of records that one `fetch` returns at most, unless its caller asks for fewer."""


class PartitionReader:
    """A reader for `async with PartitionReader(login) as reader`: call `assign`, then `fetch` repeatedly.

    A position that the log does not have raises KafkaFailed and is never skipped.
    """

    def __init__(self, login: Login, *, idle_ms: int = 500) -> None:
        """`idle_ms`: how long Kafka keeps a fetch open while no record comes. Every other request waits behind it,
        so it is short for who reads to an end and longer for who waits for what comes.
        """
        self._login = login
        self._idle_ms = idle_ms
        self._consumer: Any = None
        self._turns: Any = None

    async def __aenter__(self) -> "PartitionReader":
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        login = self._login
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=login.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            max_partition_fetch_bytes=MAX_PARTITION_BYTES,
            fetch_max_bytes=MAX_FETCH_BYTES,
            fetch_max_wait_ms=self._idle_ms,
            **sasl(login.username, login.password, ca_file=login.ca_file),
        )
        self._turns = Turns(self._consumer)
        try:
            await self._consumer.start()
        except BaseException:
            await self._consumer.stop()
            raise

    async def close(self) -> None:
        await self._consumer.stop()

    async def partitions(self, is_selected: Callable[[str], bool]) -> list[Partition]:
        """Return every partition of the topics that `is_selected` accepts, in order."""
        metadata = await self._consumer._client.fetch_all_metadata()  # noqa: SLF001  no public call fetches a topic's
        return [
            Partition(topic, number)
            for topic in sorted(filter(is_selected, metadata.topics()))
            for number in sorted(metadata.partitions_for_topic(topic) or ())
        ]

    async def ranges(self, partitions: Iterable[Partition]) -> dict[Partition, range]:
        """Return for each partition the range from its first existing offset to the next that will be given."""
        topic_partitions = [TopicPartition(*partition) for partition in partitions]
        begins, ends = await asyncio.gather(
            self._consumer.beginning_offsets(topic_partitions), self._consumer.end_offsets(topic_partitions)
        )
        return {Partition(*each): range(begins[each], ends[each]) for each in partitions}

    async def offsets_at(self, milliseconds: int, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset of each partition's first record at or after a time since 1970, or else its end."""
        topic_partitions = [TopicPartition(*partition) for partition in partitions]
        ends, offsets = await asyncio.gather(
            self._consumer.end_offsets(topic_partitions),
            self._consumer.offsets_for_times(dict.fromkeys(topic_partitions, milliseconds)),
        )
        return {
            Partition(*each): offsets[each].offset if offsets[each] else ends[each]
            for each in topic_partitions
        }

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        """Read these partitions from these offsets, and no others."""
        self._consumer.assign([TopicPartition(*partition) for partition in offsets])
        for partition, offset in offsets.items():
            self._consumer.seek(TopicPartition(*partition), offset)

    async def position(self, partition: Partition) -> int:
        """Return the offset of the next record that `fetch` gives."""
        position: int = await self._consumer.position(TopicPartition(*partition))
        return position

    async def fetch(self, *, max_records: int = MAX_RECORDS) -> list[Record]:
        """Return the records that come within POLL_MILLISECONDS, in order within a partition.

        If it raises, records that were taken are lost: assign again from the offsets that were kept.
        """
        taken = await self._turns.take(wait_ms=POLL_MILLISECONDS, max_records=max_records)
        return [record_of_kafka(each) for each in taken]
