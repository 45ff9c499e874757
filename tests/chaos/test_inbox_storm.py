"""Each message comes 1 to 20 times, shuffled: it has one effect, and those with numbers have it in order."""

from collections.abc import AsyncIterator
from random import Random
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from tests.chaos import pipeline
from tests.chaos.groups import remove_members
from tests.chaos.scale import note, scaled, seed
from tests.chaos.source import Source, a_batch, id_of
from tests.integration.kernel.conftest import new_key
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(scaled(1200, 1200, 12 * 3600))]

MEMBERS = 2
EVENTS_OF_A_STORY = 100
MOST_DELIVERIES = 20
WINDOW = 200
"""A copy comes at most so many positions behind the first."""
UNNUMBERED_SHARE = 0.25
EFFECTS = (
    "SELECT event_id, count(*) AS times FROM tracker.effect WHERE aggregate_id = ANY($1) GROUP BY event_id"
)


@pytest.fixture(scope="module")
async def members(stack: Stack) -> AsyncIterator[None]:
    await pipeline.migrated(stack, "tracker")
    names = [pipeline.process_name("tracker", instance) for instance in range(MEMBERS)]
    for instance in range(MEMBERS):
        await pipeline.start(stack, "tracker", instance=instance)
    for name in names:
        await stack.wait_healthy(name)
    yield
    for name in names:
        await stack.stop(name)
    await remove_members(stack, "tracker", *(f"tracker-{instance}" for instance in range(MEMBERS)))


def deliveries(random: Random) -> int:
    """1 to 20; most come once or twice, as after a rebalance, few very often."""
    return 1 + min(int(random.expovariate(0.7)), MOST_DELIVERIES - 1)


def shuffled(records: list[Any], random: Random, *, keep_order: bool) -> list[Any]:
    """Each as often as is drawn; the first ones in their order, or anywhere in the window too."""
    in_order = [
        (number + (random.uniform(0, WINDOW) if copy or not keep_order else 0), record)
        for number, record in enumerate(records)
        for copy in range(deliveries(random))
    ]
    return [record for _, record in sorted(in_order, key=lambda each: each[0])]


async def test_every_message_that_comes_again_and_again_has_one_effect(
    stack: Stack, members: None, db: asyncpg.Pool
):
    random, count = Random(seed()), scaled(5_000, 20_000, 1_000_000)
    numbered = int(count * (1 - UNNUMBERED_SHARE))
    keys = [new_key() for _ in range(numbered // EVENTS_OF_A_STORY)]
    jobs = [f"ftjob-{uuid4().hex}" for _ in range(len(keys))]
    async with Source(stack) as source, Source(stack, "runner", "run.metrics") as runner:
        facts = [source.fact(random.choice(keys)) for _ in range(numbered)]
        batches = [a_batch(random.choice(jobs)) for _ in range(count - numbered)]
        stories = shuffled(facts, random, keep_order=True)
        loose = shuffled(batches, random, keep_order=False)
        await source.all(stories)
        await runner.all(loose)

    async def all_seen() -> bool:
        return await db.fetchval(pipeline.COUNT_EFFECTS, keys + jobs) >= count

    await until(all_seen, "every message to have its effect", seconds=scaled(200, 200, 6 * 3600))
    await pipeline.caught_up(stack, "tracker")
    repeat = f"repeat with CHAOS_SEED={seed()}"
    effects = {row["event_id"]: row["times"] for row in await db.fetch(EFFECTS, keys + jobs)}
    assert effects == {id_of(record): 1 for record in (*facts, *batches)}, repeat
    outcome = await pipeline.Books(db, keys, source.sent).until_handled()
    assert outcome.faults() == [], repeat
    note("inbox storm", events=count, deliveries=len(stories) + len(loose))
