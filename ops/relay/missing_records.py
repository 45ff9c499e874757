"""Outbox rows that were published and are no longer in their topic."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops.errors import RefusedByPlatform
from ops.relay.outbox import republish, wait_until_sent
from shared.clock import utc_now
from shared.messaging.delivery import topic_named
from shared.messaging.login import Login
from shared.messaging.partitions import READING_MS, PartitionReader
from shared.partition import Partition
from shared.postgres.database import Database
from shared.record import Record

CLOCKS_APART = timedelta(minutes=5)
AT_ONCE = 5_000
PUBLISHED = """
    SELECT id, event_id FROM {service}.outbox
     WHERE topic = $1 AND created_at >= $2
       AND NOT EXISTS (SELECT FROM {service}.unpublished WHERE unpublished.id = outbox.id) ORDER BY id"""
TOPICS = "SELECT DISTINCT topic FROM {service}.outbox WHERE created_at >= $1 ORDER BY topic"


@dataclass(frozen=True)
class Comparison:
    service: str
    topic: str
    rows: int
    lost: tuple[int, ...]
    """Ids of the rows whose record is gone, in the order in which they are sent again."""


@dataclass(frozen=True)
class Search:
    """Which rows to look for: of these services from `since` on, of all topics where none is named."""

    services: Sequence[str]
    since: datetime
    topics: frozenset[str] = frozenset()


async def find_missing(database: Database, login: Login, search: Search) -> list[Comparison]:
    now = utc_now()
    return [
        await _compare_topic(database, login, service, row["topic"], since=search.since, now=now)
        for service in search.services
        for row in await database.fetch(TOPICS.format(service=service), search.since)
        if row["topic"] in search.topics or not search.topics
    ]


async def send_again(
    database: Database,
    login: Login,
    search: Search,
    missing: Iterable[Comparison],
    *,
    say: Callable[[str], None],
) -> None:
    """Have the relays send the missing records, and look again. Raises RefusedByPlatform where some still lack."""
    for each in missing:
        batches = [each.lost[start : start + AT_ONCE] for start in range(0, len(each.lost), AT_ONCE)]
        count = sum([await republish(database, each.service, ids) for ids in batches])
        say(f"{each.service}: {count} rows of {each.topic} are sent again")
        await wait_until_sent(database, each.service, each.lost)
    for each in await find_missing(database, login, search):
        if each.lost:
            raise RefusedByPlatform(
                f"{each.topic} still lacks {len(each.lost)} records that {each.service} has sent again"
            )


async def _compare_topic(
    database: Database, login: Login, service: str, topic: str, *, since: datetime, now: datetime
) -> Comparison:
    """The rows first: what is published was in the topic before."""
    kept = now - timedelta(days=topic_named(topic).retention_days) + CLOCKS_APART
    rows = await database.fetch(PUBLISHED.format(service=service), topic, max(since, kept))
    lost = {row["event_id"]: row["id"] for row in rows}
    if lost:
        await _remove_present(login, topic, lost, since=max(since, kept) - CLOCKS_APART)
    return Comparison(service, topic, len(rows), tuple(lost.values()))


async def _remove_present(login: Login, topic: str, lost: dict[str, int], *, since: datetime) -> None:
    """Take from `lost` what the topic has."""
    async with PartitionReader(login, idle_ms=READING_MS) as reader:
        partitions = await reader.partitions(topic.__eq__)
        in_log = await reader.ranges(partitions)
        starts = await reader.offsets_at(int(since.timestamp() * 1000), partitions)
        ranges = {partition: range(starts[partition], in_log[partition].stop) for partition in partitions}
        reader.assign({partition: offsets.start for partition, offsets in ranges.items()})
        while not await _reached(reader, ranges):
            for record in await reader.fetch():
                lost.pop(_event_id(record), None)


async def _reached(reader: PartitionReader, ranges: dict[Partition, range]) -> bool:
    return all([await reader.position(partition) >= offsets.stop for partition, offsets in ranges.items()])


def _event_id(record: Record) -> str:
    value = dict(record.headers).get("ce_id")
    return "" if value is None else value.decode("utf-8", "replace")
