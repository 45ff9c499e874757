"""Statements from S3 and records from Kafka, a little at a time."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import count

from ops.audit.findings import Finding
from ops.audit.recount import Recount
from ops.audit.statements import Anchor, Walk
from schemas import layout
from schemas.audit import Statement
from shared.audit.heads import Heads, after
from shared.audit.signing import BadSignature, PublicKey
from shared.messaging.delivery import topic_named
from shared.messaging.login import Login
from shared.messaging.partitions import READING_MS, PartitionReader
from shared.partition import Partition
from shared.storage.objects import ObjectStore

AT_ONCE = 32
"""Statements that are fetched together."""

Progress = Callable[[int], None]
"""Given how many more statements or records were read."""
Bound = int | datetime | None
"""A statement's number, or a time."""


class Statements:
    """What is under `audit/`. Numbers are those of the keys; whether they are right the walk finds out."""

    def __init__(self, objects: ObjectStore, key: PublicKey, numbers: Sequence[int]) -> None:
        self._objects = objects
        self._key = key
        self.numbers = numbers

    @classmethod
    async def open(cls, objects: ObjectStore, key: PublicKey) -> "Statements":
        heads = await objects.list_objects(layout.AUDIT)
        named = (head.key.removeprefix(layout.AUDIT).removesuffix(".json") for head in heads)
        return cls(objects, key, sorted(int(name) for name in named if name.isdigit()))

    async def walk(self, since: Bound, until: Bound, progress: Progress) -> Walk:
        """Read all statements from the first at or after `since` to the last at or before `until`."""
        first = 0 if since is None else await self._index(since)
        last = len(self.numbers) if until is None else await self._index(until, is_end=True)
        numbers = self.numbers[first:last]
        known = await self._heads_before(first) if numbers else None
        walk = Walk(self._key, 1 if since is None or not numbers else numbers[0], known)
        for start in range(0, len(numbers), AT_ONCE):
            together = numbers[start : start + AT_ONCE]
            documents = await asyncio.gather(*(self._get(number) for number in together))
            for number, document in zip(together, documents, strict=True):
                walk.take(number, document)
            progress(len(together))
        return walk

    async def _index(self, bound: int | datetime, *, is_end: bool = False) -> int:
        """Index of the first number at or behind the bound; for an end, behind what is at it."""
        if isinstance(bound, int):
            return bisect_left(self.numbers, bound + is_end)
        low, high = 0, len(self.numbers)
        while low < high:
            middle = (low + high) // 2
            if await self._signed_at(self.numbers[middle]) < bound:
                low = middle + 1
            else:
                high = middle
        return low

    async def _heads_before(self, index: int) -> Heads | None:
        """Return all heads at the statement before this one, from the last full one on; None if one is missing."""
        statements: list[Statement] = []
        for earlier, number in zip(
            range(index - 1, -1, -1), count(self.numbers[index] - 1, -1), strict=False
        ):
            statement = await self._find(number) if self.numbers[earlier] == number else None
            if statement is None:
                return None
            statements.append(statement)
            if statement.is_full:
                return after(reversed(statements))
        return None

    async def _find(self, number: int) -> Statement | None:
        try:
            statement = self._key.open(await self._get(number))
        except BadSignature:
            return None
        return statement if statement.number == number else None

    async def _signed_at(self, number: int) -> datetime:
        try:
            return self._key.open(await self._get(number)).signed_at
        except BadSignature as error:
            raise BadSignature(f"statement {number} gives no time to look for: {error}") from error

    async def _get(self, number: int) -> bytes:
        return await self._objects.get_bytes(layout.audit_statement(number))


async def recount(
    login: Login, anchors: dict[Partition, list[Anchor]], *, now: datetime, progress: Progress
) -> tuple[list[Finding], list[Recount]]:
    """Read every anchored partition again, topic by topic."""
    findings: list[Finding] = []
    done: list[Recount] = []
    async with PartitionReader(login, idle_ms=READING_MS) as reader:
        existing = await reader.partitions({partition.topic for partition in anchors}.__contains__)
        gone = sorted(anchors.keys() - set(existing))
        findings += [_gone(partition, anchors[partition]) for partition in gone]
        for topic in sorted({partition.topic for partition in existing}):
            partitions = [
                partition for partition in existing if partition.topic == topic and partition in anchors
            ]
            counts = await _begun(reader, partitions, anchors, now)
            await _read(reader, counts, progress)
            findings += [finding for count in counts.values() for finding in count.finish()]
            done += counts.values()
    return findings, done


def _gone(partition: Partition, anchors: list[Anchor]) -> Finding:
    offsets = range(anchors[0].start_offset, anchors[-1].next_offset)
    return Finding("gone", "the partition does not exist any more", partition, offsets, None)


async def _begun(
    reader: PartitionReader,
    partitions: list[Partition],
    anchors: dict[Partition, list[Anchor]],
    now: datetime,
) -> dict[Partition, Recount]:
    ranges = await reader.ranges(partitions)
    return {
        partition: Recount(
            partition, anchors[partition], ranges[partition], now=now, retention=_retention(partition.topic)
        )
        for partition in partitions
    }


def _retention(topic: str) -> timedelta:
    """What the contract says, whatever the broker was asked for."""
    return timedelta(days=topic_named(topic).retention_days)


async def _read(reader: PartitionReader, counts: dict[Partition, Recount], progress: Progress) -> None:
    pending = {partition: count for partition, count in counts.items() if count.start < count.stop}
    if not pending:
        return
    reader.assign({partition: count.start for partition, count in pending.items()})
    while not all([await reader.position(partition) >= count.stop for partition, count in pending.items()]):
        records = await reader.fetch()
        for record in records:
            pending[Partition(record.topic, record.partition)].take(record)
        progress(len(records))
