"""Schemas of a test's own, beside those of the services."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg

from deploy.local.stack import Stack
from shared.postgres.database import Database

CONSTRAINTS = """
    SELECT conrelid::regclass::text AS table, conname FROM pg_constraint
     WHERE connamespace = $1::regnamespace AND contype IN ('f', 'p', 'c', 'n')
     ORDER BY array_position(ARRAY['f', 'p', 'c', 'n']::"char"[], contype)"""


async def drop_constraints(database: Database, schema: str) -> None:
    """Let the tables of the schema take rows with a few columns."""
    for row in await database.fetch(CONSTRAINTS, schema):
        await database.execute(f"ALTER TABLE {row['table']} DROP CONSTRAINT {row['conname']}")


@asynccontextmanager
async def empty_schema(stack: Stack) -> AsyncIterator[str]:
    """The superuser's DSN of it."""
    dsn, name = stack.postgres_dsn("postgres"), f"scratch_{uuid4().hex[:8]}"
    conn = await asyncpg.connect(dsn)
    await conn.execute(f"CREATE SCHEMA {name}")
    try:
        yield f"{dsn}?search_path={name}"
    finally:
        await conn.execute(f"DROP SCHEMA {name} CASCADE")
        await conn.close()
