"""Hostile records of many kinds among good ones: each is parked with a reason, and no good one is held up."""

from collections import Counter
from collections.abc import AsyncIterator
from itertools import cycle, islice
from random import Random

import asyncpg
import pytest

from deploy.local.stack import Stack
from tests.chaos import pipeline
from tests.chaos.poison import CLASSES, compare
from tests.chaos.scale import note, scaled, seed
from tests.chaos.source import Source
from tests.integration.kernel.conftest import new_key

pytestmark = [pytest.mark.stack, pytest.mark.timeout(scaled(1200, 1200, 12 * 3600))]

KEYS = 40
PARKED = """
    SELECT partition, "offset", reason, detail FROM tracker.parked
     WHERE topic = 'node.events' AND state = 'parked'"""


@pytest.fixture(scope="module")
async def source(stack: Stack) -> AsyncIterator[Source]:
    await pipeline.migrated(stack, "tracker")
    await pipeline.start(stack, "tracker")
    await stack.wait_healthy("tracker")
    async with Source(stack) as source:
        yield source
    await stack.stop("tracker")


async def test_every_hostile_record_is_parked_and_every_good_one_applied(
    stack: Stack, source: Source, db: asyncpg.Pool
):
    random, count = Random(seed()), scaled(500, 2_000, 100_000)
    keys, acks = [new_key() for _ in range(KEYS)], []
    for name, spoil in islice(cycle(CLASSES.items()), count):
        acks.append((name, await source.send(spoil(source.message(new_key())))))
        await (await source.send(source.fact(random.choice(keys))))
    hostile = {((sent := await ack).partition, sent.offset): name for name, ack in acks}
    await pipeline.caught_up(stack, "tracker")
    repeat = f"repeat with CHAOS_SEED={seed()}"
    outcome = await pipeline.Books(db, keys, source.sent).until_handled()
    assert outcome.faults() == [], repeat
    parked = {(row["partition"], row["offset"]): row for row in await db.fetch(PARKED)}
    missing = Counter(name for location, name in hostile.items() if location not in parked)
    assert missing == {}, repeat
    assert all(parked[location]["reason"] and parked[location]["detail"] for location in hostile), repeat
    assert stack._supervisor.child("tracker").deaths == 0, "a hostile record must not end a process"
    note("poison", hostile=len(hostile), classes=len(CLASSES), good=count)


async def test_how_long_good_records_take_among_hostile_ones_is_noted(
    stack: Stack, source: Source, db: asyncpg.Pool
):
    """A figure, not a limit: a time on a busy machine proves nothing."""
    alone, among = await compare(
        source, db, Random(seed()), rounds=scaled(1, 1, 10), count=scaled(100, 100, 1_000), per_second=50
    )
    note("poison p99", alone_ms=1e3 * alone.p99, among_ms=1e3 * among.p99)
    assert await pipeline.caught_up(stack, "tracker") is None
