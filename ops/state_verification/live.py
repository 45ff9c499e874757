"""What the service has now, at one moment: its rows, and when it applied what."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ops.state_verification.difference import Table
from shared.postgres.database import Connection

KERNEL = frozenset(
    {
        *(
            "outbox",
            "unpublished",
            "set_aside",
            "dropped_event",
            "sequence",
            "inbox",
            "position",
            "waiting",
            "parked",
        ),
        *("timer", "task", "turn", "lease", "migration"),
    }
)

NOW = "SELECT clock_timestamp()"
INBOX = "SELECT topic, event_id, applied_at FROM {schema}.inbox"
KEPT = """
    SELECT topic, partition, "offset" FROM {schema}.parked WHERE state <> 'replayed'
     UNION SELECT topic, partition, "offset" FROM {schema}.waiting"""
SEQUENCES = "SELECT topic, aggregate_id, last FROM {schema}.sequence"
UNSENT = """
    SELECT 0 AS partition, 0 AS offset, topic, convert_to(aggregate_id, 'UTF8') AS key, headers, sequence, value
      FROM {schema}.outbox
     WHERE id IN (SELECT id FROM {schema}.unpublished UNION SELECT id FROM {schema}.set_aside)"""
TIMERS = "SELECT type, payload, fires_at FROM {schema}.timer"
TABLES = """
    SELECT table_name FROM information_schema.tables
     WHERE table_schema = $1 AND table_type = 'BASE TABLE' ORDER BY table_name"""
COLUMNS = """
    SELECT column_name FROM information_schema.columns
     WHERE table_schema = $1 AND table_name = $2 AND coalesce(column_default, '') NOT LIKE 'nextval(%'
     ORDER BY ordinal_position"""
KEY = """
    SELECT attribute.attname FROM pg_index JOIN pg_attribute AS attribute
           ON attribute.attrelid = pg_index.indrelid AND attribute.attnum = ANY (pg_index.indkey)
     WHERE pg_index.indrelid = to_regclass($1) AND indisprimary"""


@dataclass(frozen=True)
class Live:
    at: datetime
    applied: dict[tuple[str, str], datetime]
    """When each message was applied or refused, by topic and event id."""
    kept: frozenset[tuple[str, int, int]]
    """Topic, partition and offset of what is parked, was dropped, or waits."""
    last: dict[tuple[str, str], int]
    """The last number given to each event stream."""
    unsent: tuple[Any, ...]
    """Outbox rows that the relay has not sent."""
    timers: Table
    tables: tuple[Table, ...]


async def read_live(conn: Connection, schema: str) -> Live:
    """`conn` is in a transaction that sees one moment."""

    async def rows(query: str) -> list[Any]:
        return list(await conn.fetch(query.format(schema=schema)))

    return Live(
        at=await conn.fetchval(NOW),
        applied={(row["topic"], row["event_id"]): row["applied_at"] for row in await rows(INBOX)},
        kept=frozenset((row["topic"], row["partition"], row["offset"]) for row in await rows(KEPT)),
        last={(row["topic"], row["aggregate_id"]): row["last"] for row in await rows(SEQUENCES)},
        unsent=tuple(await rows(UNSENT)),
        timers=await read_timers(conn, schema),
        tables=await read_tables(conn, schema),
    )


async def read_timers(conn: Connection, schema: str) -> Table:
    """Those that are still to fire."""
    return Table("timer", (), tuple(dict(row) for row in await conn.fetch(TIMERS.format(schema=schema))))


async def read_tables(conn: Connection, schema: str) -> tuple[Table, ...]:
    """The service's own; of the kernel's, other things are compared."""
    names = [row["table_name"] for row in await conn.fetch(TABLES, schema)]
    return tuple([await _read_table(conn, schema, name) for name in names if name not in KERNEL])


async def _read_table(conn: Connection, schema: str, name: str) -> Table:
    """Numbers that Postgres gives out are left out: they say nothing but the order of writing."""
    columns = [row["column_name"] for row in await conn.fetch(COLUMNS, schema, name)]
    primary = {row["attname"] for row in await conn.fetch(KEY, f"{schema}.{name}")}
    listed = ", ".join(f'"{column}"' for column in columns)
    rows = await conn.fetch(f'SELECT {listed} FROM {schema}."{name}"')
    key = tuple(column for column in columns if column in primary)
    return Table(name, key, tuple(dict(row) for row in rows))
