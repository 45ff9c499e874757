"""Outbox rows that were published and are no longer in their topic."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.messaging.delivery import Record, topic_named
from shared.messaging.partitions import Login, PartitionReader
from shared.partition import Partition
from shared.postgres.database import Database

CLOCKS_APART = timedelta(minutes=5)
AT_ONCE = 5_000
PUBLISHED = """
    SELECT id, event_id FROM {service}.outbox
     WHERE topic = $1 AND created_at >= $2
       AND NOT EXISTS (SELECT FROM {service}.unpublished WHERE unpublished.id = outbox.id) ORDER BY id"""
HAS_OUTBOX = "SELECT to_regclass($1) IS NOT NULL"
TOPICS = "SELECT DISTINCT topic FROM {service}.outbox WHERE created_at >= $1 ORDER BY topic"
REPUBLISH = "SELECT {service}.republish($1)"
UNSENT = "SELECT count(*) FROM {service}.unpublished WHERE id = ANY($1)"


@dataclass(frozen=True)
class Compared:
    service: str
    topic: str
    rows: int
    lost: tuple[int, ...]
    """Ids of the rows whose record is gone, in the order in which they are sent again."""


async def is_set_up(database: Database, service: str) -> bool:
    return bool(await database.fetchval(HAS_OUTBOX, f"{service}.outbox"))


async def compare(
    database: Database, login: Login, service: str, *, since: datetime, topics: Iterable[str], now: datetime
) -> list[Compared]:
    """Every topic that the service wrote, or those of `topics`."""
    rows = await database.fetch(TOPICS.format(service=service), since)
    selected = set(topics)
    names = [row["topic"] for row in rows if row["topic"] in selected or not selected]
    return [await _compare_topic(database, login, service, name, since=since, now=now) for name in names]


async def _compare_topic(
    database: Database, login: Login, service: str, topic: str, *, since: datetime, now: datetime
) -> Compared:
    """The rows first: what is published was in the topic before."""
    kept = now - timedelta(days=topic_named(topic).retention_days) + CLOCKS_APART
    rows = await database.fetch(PUBLISHED.format(service=service), topic, max(since, kept))
    lost = {row["event_id"]: row["id"] for row in rows}
    if lost:
        await _strike_out(login, topic, lost, since=max(since, kept) - CLOCKS_APART)
    return Compared(service, topic, len(rows), tuple(lost.values()))


async def _strike_out(login: Login, topic: str, lost: dict[str, int], *, since: datetime) -> None:
    """Take from `lost` what the topic has."""
    async with PartitionReader(login) as reader:
        places = await reader.partitions(topic.__eq__)
        there = await reader.ranges(places)
        starts = await reader.offsets_at(int(since.timestamp() * 1000), places)
        ranges = {place: range(starts[place], there[place].stop) for place in places}
        reader.assign({place: offsets.start for place, offsets in ranges.items()})
        while not await _reached(reader, ranges):
            for record in await reader.fetch():
                lost.pop(_event_id(record), None)


async def _reached(reader: PartitionReader, ranges: dict[Partition, range]) -> bool:
    return all([await reader.position(place) >= offsets.stop for place, offsets in ranges.items()])


def _event_id(record: Record) -> str:
    value = dict(record.headers).get("ce_id")
    return "" if value is None else value.decode("utf-8", "replace")


async def republish(database: Database, compared: Compared) -> int:
    """Have the service's own relay send them again; how many rows that are."""
    count = 0
    for start in range(0, len(compared.lost), AT_ONCE):
        ids = compared.lost[start : start + AT_ONCE]
        count += await database.fetchval(REPUBLISH.format(service=compared.service), list(ids))
    return count


async def unsent(database: Database, service: str, ids: Sequence[int]) -> int:
    count: int = await database.fetchval(UNSENT.format(service=service), list(ids))
    return count
