"""Facts that flow through the pair of services while something is done to them, and the books on what became of each."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import asyncpg

from deploy.local.stack import Stack
from shared.messaging.login import Login
from shared.postgres.database import Database
from tests.chaos import pipeline
from tests.chaos.pipeline import Books, Writers
from tests.chaos.scale import seed
from tests.integration.kernel.conftest import new_key

NUM_KEYS = 20


@dataclass
class Load:
    writers: Writers
    books: Books
    keys: list[str]
    random: Random
    login: Login

    @asynccontextmanager
    async def nothing_lost_or_doubled(self) -> AsyncIterator[None]:
        """After what is done inside, traffic flows, stops, and every fact had its one effect, in order."""
        yield
        await self.books.until_effects(20)
        await self.writers.stop()
        outcome = await self.books.until_handled()
        repeat = f"repeat with CHAOS_SEED={seed()}"
        assert outcome.faults() == [], repeat
        # A commit that was acknowledged has taken place; others may have.
        assert self.writers.committed <= sum(map(len, outcome.written.values())), repeat
        sequences = await pipeline.published_sequences(self.login, self.keys)
        numbers = {key: list(range(1, len(ids) + 1)) for key, ids in outcome.written.items()}
        assert sequences == numbers, repeat


@asynccontextmanager
async def traffic(stack: Stack, db: asyncpg.Pool, login: Login) -> AsyncIterator[Load]:
    """Until the end of the block; it flows already when that begins."""
    keys, random = [new_key() for _ in range(NUM_KEYS)], Random(seed())
    database = Database(stack.postgres_dsn("provisioner"), application="writers")
    await database.open()
    writers = Writers(database, keys, random, per_second=25.0)
    try:
        async with writers.at_work():
            load = Load(writers, Books(db, keys), keys, random, login)
            await load.books.until_effects(20)
            yield load
    finally:
        await database.close()
