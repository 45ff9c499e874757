"""Schemas of a test's own, beside those of the services."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg

from deploy.local.stack import Stack


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
