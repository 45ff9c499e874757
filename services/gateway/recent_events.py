"""The newest events of each tenant with their records, for people to read; `handlers` writes them."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from schemas.base import Message
from services.gateway.filters import escaped
from services.gateway.model import Row
from services.gateway.store import columns, find, select
from services.gateway.timeline import sentence
from shared.messaging.unit import Unit
from shared.postgres.database import Database
from shared.text import storable

MOST_OF_A_TENANT = 100_000
LOOKED_AT = 5_000
"""Events in which a text is looked for at once."""
COUNTED = 20_000
"""Most events of the last hour that are counted by minute."""
LOOK_BACK = 1_000
LATE = timedelta(seconds=30)
"""A number may be seen before a smaller one, whose transaction commits later: so long, and so far back."""


class RecentEvent(Row):
    number: int
    type: str
    subject: str
    """The job that it is about, or else the record's key."""
    level: str
    message: str
    topic: str
    key: str
    sent_at: datetime


class RecordedEvent(RecentEvent):
    """An event with its record."""

    partition: int
    record_offset: int
    headers: tuple[tuple[str, str], ...]
    payload: str
    recorded_at: datetime


@dataclass(frozen=True)
class EventFilter:
    type: str = ""
    subject: str = ""
    text: str = ""
    """Part of the payload, the sentence or the key, whatever its case."""

    @property
    def pattern(self) -> str | None:
        """What LIKE takes; None without a text."""
        return f"%{escaped(self.text)}%" if self.text else None


@dataclass(frozen=True)
class EventPage:
    rows: list[RecentEvent]
    older: int | None
    """Number that the next page is before; None where there are no older ones. With a text there may be a next page
    after one that is not full."""


ADD_EVENT = """
    INSERT INTO recent_event (tenant, type, subject, level, message, topic, partition, record_offset, key, headers,
                              payload, sent_at, recorded_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"""
FIND_EVENT = f"SELECT {columns(RecordedEvent)} FROM recent_event WHERE number = $1 AND tenant = $2"
LIST_TYPES = """
    WITH RECURSIVE kinds AS (
        (SELECT type FROM recent_event WHERE tenant = $1 ORDER BY type LIMIT 1)
        UNION ALL
        SELECT following.type FROM kinds CROSS JOIN LATERAL (
            SELECT type FROM recent_event WHERE tenant = $1 AND type > kinds.type ORDER BY type LIMIT 1) AS following)
    SELECT type FROM kinds"""
MATCHES = """($3::text IS NULL OR type = $3) AND ($4::text IS NULL OR subject = $4)"""
HAS_TEXT = "($5::text IS NULL OR concat_ws(' ', message, key, payload) ILIKE $5)"
LOOKED = f"""
    SELECT {columns(RecentEvent)}, payload FROM recent_event
     WHERE tenant = $1 AND ($2::bigint IS NULL OR number < $2) AND {MATCHES} ORDER BY number DESC"""
LIST_EVENTS = f"""
    SELECT {columns(RecentEvent)} FROM ({LOOKED} LIMIT $6) AS looked
     WHERE {HAS_TEXT} ORDER BY number DESC LIMIT $7"""
FIND_LAST_LOOKED = f"SELECT count(*) AS count, min(number) AS number FROM ({LOOKED} LIMIT $5) AS looked"
LIST_NEWER = f"""
    SELECT {columns(RecentEvent)} FROM recent_event
     WHERE tenant = $1 AND number > $2 - {LOOK_BACK} AND (number > $2 OR recorded_at > $6)
       AND {MATCHES} AND {HAS_TEXT} ORDER BY number DESC LIMIT $7"""
# From the newest one back to the first that is too old, which ends the look.
COUNT_BY_MINUTE = f"""
    WITH looked AS (
        SELECT sent_at FROM recent_event
         WHERE tenant = $1 AND ($2::text IS NULL OR type = $2) AND ($3::text IS NULL OR subject = $3)
           AND number > coalesce(
               (SELECT number FROM (
                    SELECT number, recorded_at FROM recent_event
                     WHERE tenant = $1 AND ($2::text IS NULL OR type = $2) AND ($3::text IS NULL OR subject = $3)
                     ORDER BY number DESC LIMIT {COUNTED}) AS newest
                 WHERE recorded_at <= $4 LIMIT 1), 0)
         ORDER BY number DESC LIMIT {COUNTED})
    SELECT date_trunc('minute', sent_at, 'UTC') AS minute, count(*) AS count FROM looked GROUP BY 1"""
FIND_NEWEST = "SELECT max(number) FROM recent_event WHERE tenant = $1"
PRUNE_OLD = """
    DELETE FROM recent_event WHERE number = ANY(ARRAY(
        SELECT number FROM (SELECT number, recorded_at FROM recent_event ORDER BY number LIMIT $2) AS oldest
         WHERE recorded_at < now() - $1::interval))"""
# However young they are.
PRUNE_MANY = f"""
    DELETE FROM recent_event WHERE number = ANY(ARRAY(
        SELECT excess.number FROM tenant CROSS JOIN LATERAL (
            SELECT number FROM recent_event WHERE recent_event.tenant = tenant.name
             ORDER BY number DESC OFFSET {MOST_OF_A_TENANT}) AS excess
         WHERE $1::interval IS NOT NULL LIMIT $2))"""
PRUNED = (PRUNE_OLD, PRUNE_MANY)


async def record(event: Message, unit: Unit, tenants: list[str]) -> None:
    """Keep an event of an event stream with its record for each tenant that it is about."""
    envelope, source = unit.envelope, unit.record
    assert envelope is not None, "events come with an envelope"
    assert source is not None, "events come as records"
    level, message = sentence(event)
    headers = [(name, storable((value or b"").decode(errors="replace"))) for name, value in source.headers]
    payload = storable((source.value or b"").decode(errors="replace"))
    subject = getattr(event, "job_id", None) or envelope.key
    for tenant in tenants:
        await unit.conn.execute(
            ADD_EVENT,
            *(tenant, event.type, subject, level, message),
            *(source.topic, source.partition, source.offset, envelope.key),
            *(headers, payload, envelope.time, unit.now),
        )


async def find_event(database: Database, number: int, tenant: str) -> RecordedEvent | None:
    return await find(RecordedEvent, database, FIND_EVENT, number, tenant)


async def list_types(database: Database, tenant: str) -> list[str]:
    """Return the types of the tenant's events, by name."""
    return [row["type"] for row in await database.fetch(LIST_TYPES, tenant)]


async def list_events(
    database: Database, tenant: str, event_filter: EventFilter, *, before: int | None, limit: int
) -> EventPage:
    """Return events, the newest first. A text is looked for in the newest `LOOKED_AT` of those before."""
    asked = tenant, before, event_filter.type or None, event_filter.subject or None
    pattern = event_filter.pattern
    most = limit + 1 if pattern is None else LOOKED_AT
    rows = await select(RecentEvent, database, LIST_EVENTS, *asked, pattern, most, limit + 1)
    if len(rows) > limit:
        return EventPage(rows[:limit], rows[limit - 1].number)
    if pattern is None:
        return EventPage(rows, None)
    last = await database.fetchrow(FIND_LAST_LOOKED, *asked, LOOKED_AT)
    assert last is not None, "an aggregate has a row"
    return EventPage(rows, last["number"] if last["count"] == LOOKED_AT else None)


async def list_newer(
    database: Database, tenant: str, event_filter: EventFilter, *, after: int, limit: int
) -> list[RecentEvent]:
    """Return events after a number, the newest first, and with them those before it that may have come late."""
    values = event_filter.type or None, event_filter.subject or None, event_filter.pattern
    return await select(
        RecentEvent, database, LIST_NEWER, tenant, after, *values, database.now() - LATE, limit
    )


async def count_by_minute(
    database: Database, tenant: str, event_filter: EventFilter, *, since: datetime
) -> dict[datetime, int]:
    """Count events of the type and subject that were recorded since then by the minute in which they were sent; the
    newest `COUNTED` where there are more."""
    values = event_filter.type or None, event_filter.subject or None
    rows = await database.fetch(COUNT_BY_MINUTE, tenant, *values, since)
    return {row["minute"]: row["count"] for row in rows}


async def find_newest(database: Database, tenant: str) -> int:
    """Return the number of the tenant's newest event; 0 where there is none."""
    number: int | None = await database.fetchval(FIND_NEWEST, tenant)
    return number or 0
