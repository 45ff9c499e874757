"""A database that is away, or whose answer is lost, as often as a test asks for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.postgres.database import Database


class Shaky(Database):
    """Postgres is away this many times when a transaction begins."""

    away = 0
    trouble: Exception = ConnectionRefusedError("nobody listens")
    in_doubt = 0
    """So many commits take place, but their answer is lost."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator:
        if self.away:
            self.away -= 1
            raise self.trouble
        async with super().transaction() as conn:
            yield conn
        if self.in_doubt:
            self.in_doubt -= 1
            raise ConnectionResetError("no answer to COMMIT")


@pytest.fixture
async def database(tracker_env, db) -> AsyncIterator[Shaky]:
    database = Shaky(tracker_env["TRACKER_POSTGRES_DSN"], application="test")
    await database.open()
    yield database
    await database.close()
