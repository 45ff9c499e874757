"""Kafka and Postgres for a benchmark: the local stack's parts alone, with one service's schema in them."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from bench.report import progress
from deploy.local.stack import Stack
from shared.messaging.login import Login
from shared.postgres.migrate import migrate

SERVICE = "tracker"
TOPIC = "cost.events"


@asynccontextmanager
async def running_parts() -> AsyncIterator[Stack]:
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder) / "state", report=progress)
        await stack.up(())
        try:
            await migrate(SERVICE, stack.service_env(SERVICE)["TRACKER_POSTGRES_DSN"])
            yield stack
        finally:
            await stack.down()


def operator_login(stack: Stack) -> Login:
    return Login(stack.kafka_bootstrap, "admin", stack.kafka_password("admin"))


async def connect(stack: Stack) -> asyncpg.Connection:
    """As the service itself, in its own schema."""
    return await asyncpg.connect(stack.service_env(SERVICE)["TRACKER_POSTGRES_DSN"])


async def until_empty(conn: asyncpg.Connection, is_left: str, *, deadline_seconds: float) -> None:
    """Wait until the query finds no row."""
    async with asyncio.timeout(deadline_seconds):
        while await conn.fetchval(f"SELECT EXISTS ({is_left})"):
            await asyncio.sleep(0.02)
