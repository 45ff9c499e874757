"""SQL over the tables of the message kernel, which are the same in the schema of every service."""

import sys
from collections.abc import AsyncIterator
from datetime import datetime

import asyncpg

from ops.doctor.history import EventStream, Kernel, Parked, Row, Waiting
from schemas.topics import SERVICES
from shared.postgres.database import Connection

PREFETCH = 2_000
"""Rows of one fetch; a schema's tables may be longer than memory likes at once."""

SCHEMAS = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'outbox' AND table_schema = ANY($1)"
OUTBOX = """
    SELECT event_id, outbox.topic, outbox.aggregate_id, sequence, type, sha256(value) AS digest,
           headers ->> 'ce_time' AS time, coalesce(headers ->> 'ce_causationid', '') AS causation_id, created_at,
           NOT EXISTS (SELECT FROM {schema}.unpublished WHERE unpublished.id = outbox.id) AS is_published,
           coalesce(detail, '') AS set_aside
      FROM {schema}.outbox LEFT JOIN {schema}.set_aside USING (id) ORDER BY id"""
SEQUENCES = "SELECT topic, aggregate_id, last FROM {schema}.sequence"
INBOX = "SELECT topic, event_id, payload_sha256 FROM {schema}.inbox"
POSITIONS = "SELECT topic, aggregate_id, sequence FROM {schema}.position"
WAITING = 'SELECT topic, partition, "offset", event_id, expires_at FROM {schema}.waiting'
PARKED = """
    SELECT id, topic, partition, "offset", event_id, reason, detail, state = 'parked' AS is_open
      FROM {schema}.parked"""
TIMERS_DUE = "SELECT type, fires_at FROM {schema}.timer WHERE fires_at < clock_timestamp() ORDER BY fires_at"
TASKS_SET_ASIDE = """
    SELECT kind, key, last_error FROM {schema}.task WHERE set_aside_at IS NOT NULL ORDER BY set_aside_at"""
TASKS_AWAY = """
    SELECT kind, key, away_since, last_error FROM {schema}.task
     WHERE away_since IS NOT NULL AND set_aside_at IS NULL ORDER BY away_since"""


async def read_schemas(conn: Connection) -> tuple[str, ...]:
    """The services that have tables here."""
    present = {row["table_schema"] for row in await conn.fetch(SCHEMAS, list(SERVICES))}
    return tuple(service for service in SERVICES if service in present)


async def read_kernel(conn: Connection, schema: str) -> Kernel:
    async def each(query: str) -> AsyncIterator[asyncpg.Record]:
        async for row in conn.cursor(query.format(schema=schema), prefetch=PREFETCH):
            yield row

    return Kernel(
        outbox=tuple([_outbox_row(row) async for row in each(OUTBOX)]),
        sequences={_event_stream(row): row["last"] async for row in each(SEQUENCES)},
        inbox={
            (sys.intern(row["topic"]), row["event_id"]): row["payload_sha256"] async for row in each(INBOX)
        },
        positions={_event_stream(row): row["sequence"] async for row in each(POSITIONS)},
        waiting=tuple([Waiting(*row) async for row in each(WAITING)]),
        parked=tuple([Parked(*row) async for row in each(PARKED)]),
        timers_due=tuple([(row["type"], row["fires_at"]) async for row in each(TIMERS_DUE)]),
        tasks_set_aside=tuple([tuple(row) async for row in each(TASKS_SET_ASIDE)]),
        tasks_away=tuple([tuple(row) async for row in each(TASKS_AWAY)]),
    )


def _outbox_row(row: asyncpg.Record) -> Row:
    return Row(
        event_id=row["event_id"],
        topic=sys.intern(row["topic"]),
        key=sys.intern(row["aggregate_id"]),
        sequence=row["sequence"],
        type=sys.intern(row["type"]),
        sha256=row["digest"],
        time=datetime.fromisoformat(row["time"]),
        causation_id=row["causation_id"],
        created_at=row["created_at"],
        is_published=row["is_published"],
        set_aside=row["set_aside"],
    )


def _event_stream(row: asyncpg.Record) -> EventStream:
    return sys.intern(row["topic"]), sys.intern(row["aggregate_id"])
