"""What a service knows, as digests to compare: its own tables, without the kernel's."""

import asyncpg

KERNEL = frozenset(
    "outbox unpublished set_aside dropped_event sequence inbox position waiting parked timer task turn lease migration".split()  # noqa: SIM905
)
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY tablename"
DIGEST = """SELECT count(*) || ' rows ' || md5(coalesce(string_agg(row::text, '|' ORDER BY row::text), ''))
              FROM {table} AS row"""


async def state_of(conn: asyncpg.Connection | asyncpg.Pool, service: str) -> dict[str, str]:
    """Per table how many rows it has and the digest of all."""
    names = [row["tablename"] for row in await conn.fetch(TABLES, service)]
    return {
        name: await conn.fetchval(DIGEST.format(table=f'{service}."{name}"'))
        for name in names
        if name not in KERNEL
    }
