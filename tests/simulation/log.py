"""The log in memory: topics of partitions, records in order, cursors of those who read."""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from schemas.base import Message
from schemas.topics import Topic
from tests.simulation.clock import START


@dataclass(frozen=True, slots=True)
class Record:
    """A record and its envelope in one."""

    id: str
    topic: Topic
    key: str
    type: str
    message: Message
    sequence: int | None
    correlation_id: str = ""
    partition: int = 0
    writer: str = ""
    time: datetime = START
    """When it was written, on Postgres' clock; needed of directives alone."""


@dataclass
class Partition:
    records: list[Record] = field(default_factory=list)
    readers: list[Callable[[], None]] = field(default_factory=list)
    """Called after each append."""


class Log:
    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self.away_until = 0.0
        """Nobody can read or write until then."""

    def partition(self, topic: str, number: int) -> Partition:
        return self._partitions.setdefault((topic, number), Partition())

    def number_of(self, topic: Topic, key: str) -> int:
        known = self._numbers.get((topic.name, key))
        if known is None:
            known = zlib.crc32(key.encode()) % topic.partitions
            self._numbers[topic.name, key] = known
        return known

    def append(self, record: Record) -> None:
        partition = self.partition(record.topic.name, self.number_of(record.topic, record.key))
        partition.records.append(record)
        for reader in partition.readers:
            reader()

    def ends(self, topic: Topic) -> dict[int, int]:
        return {number: len(self.partition(topic.name, number).records) for number in range(topic.partitions)}


class Cursor:
    """A group's place in one partition. `position` is what was committed."""

    def __init__(self, topic: Topic, number: int, partition: Partition) -> None:
        self.topic = topic
        self.number = number
        self.partition = partition
        self.position = 0
        self.process = 0
        """Which one of its group reads here."""
        self.is_scheduled = False
        self.stalled_until = 0.0

    @property
    def next(self) -> Record | None:
        records = self.partition.records
        if self.position < len(records):
            return records[self.position]
        return None

    def rewind(self, rng: random.Random) -> None:
        """A rebalance: what was handled but not committed comes again."""
        self.position = max(0, self.position - rng.randint(1, 6))
