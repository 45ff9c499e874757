"""A tracker that runs, who speaks to it, and its tables."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from deploy.local.stack import Stack
from tests.integration.voices import Voices, voices


@pytest.fixture(scope="module")
async def tracker(stack: Stack) -> AsyncIterator[Stack]:
    await stack.start("tracker")
    await stack.wait_healthy("tracker")
    yield stack
    await stack.stop("tracker")


@pytest.fixture(scope="module")
async def voice(tracker: Stack) -> AsyncIterator[Voices]:
    async with voices(tracker) as voice:
        yield voice


@pytest.fixture(scope="module")
async def db(tracker: Stack) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(tracker.postgres_dsn("operator"))
    yield conn
    await conn.close()
