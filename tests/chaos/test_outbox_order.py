"""Many writers on few aggregates, a relay that is killed all the time: each fact is in the topic, in order."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from uuid import uuid4

import asyncpg
import pytest

from deploy.local.stack import Stack
from schemas.base import CapacityType
from schemas.cost import CostAccrued
from shared.clock import utc_now
from shared.messaging.login import Login
from shared.messaging.reader import TopicReader
from shared.messaging.relay import BATCH_ROWS, BATCHES_UNDER_WAY
from shared.messaging.unit import Unit
from shared.postgres.database import CONTENDED, Connection, Database
from tests.chaos import pipeline
from tests.chaos.relaying import nursery
from tests.chaos.scale import note, scaled, seed
from tests.waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(scaled(1200, 1200, 12 * 3600))]

WRITERS = 64
AGGREGATES = 20
MOST_IN_ONE_COMMIT = 16
DIES_WHEN_SENT_AND_NOT_MARKED = "relay.sent=kill@2"
"""Every other relay: one that keeps up is idle at nearly every kill from outside."""
FIRST_UNPUBLISHED = "SELECT min(id) FROM tracker.unpublished"
FIND_WRITTEN = "SELECT count(*) FROM tracker.outbox WHERE aggregate_id = ANY($1)"
# What the kernel must never do: the place in the outbox is taken before the aggregate's number is locked.
ID_FIRST = "SELECT nextval('outbox_id_seq')"
THEN_NUMBER = """
    WITH taken AS (
        INSERT INTO sequence AS s (topic, aggregate_id, last) VALUES ($3, $4, 1)
        ON CONFLICT (topic, aggregate_id) DO UPDATE SET last = s.last + 1 RETURNING last),
    written AS (
        INSERT INTO outbox (id, event_id, topic, aggregate_id, sequence, type, headers, value)
        SELECT $1, $2, $3, $4, taken.last, 'CostAccrued', $5, $6 FROM taken RETURNING id)
    INSERT INTO unpublished SELECT id FROM written"""

Emit = Callable[[Connection, CostAccrued], Awaitable[None]]


@dataclass(frozen=True)
class Log:
    """What the topic has of some aggregates."""

    deliveries: int
    first_seen: dict[str, list[int]]
    """Numbers per aggregate in the order in which they were first seen."""

    @property
    def events(self) -> int:
        return sum(map(len, self.first_seen.values()))

    @property
    def inversions(self) -> int:
        """Neighbours in the wrong order."""
        return sum(late > early for numbers in self.first_seen.values() for late, early in pairwise(numbers))

    @property
    def is_complete(self) -> bool:
        return all(
            sorted(numbers) == list(range(1, len(numbers) + 1)) for numbers in self.first_seen.values()
        )


@pytest.fixture(scope="module")
async def database(stack: Stack) -> AsyncIterator[Database]:
    await pipeline.migrated(stack, "tracker")
    database = Database(stack.postgres_dsn("tracker"), application="writers", max_size=WRITERS)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def keys() -> list[str]:
    return [f"ftjob-{uuid4().hex}" for _ in range(AGGREGATES)]


def a_cost(job_id: str) -> CostAccrued:
    return CostAccrued(
        job_id=job_id,
        tenant="acme",
        attempt=1,
        node_seconds=1.0,
        cost="0.1",
        total="0.1",
        capacity_type=CapacityType.SPOT,
        until=utc_now(),
    )


async def by_the_kernel(conn: Connection, message: CostAccrued) -> None:
    await Unit(conn, "tracker", utc_now()).emit(message)


async def id_before_number(conn: Connection, message: CostAccrued) -> None:
    unit = Unit(conn, "tracker", utc_now())
    outbox_id, event_id = await conn.fetchval(ID_FIRST), uuid4().hex
    headers = unit._headers(message, event_id, unit.origin)
    value = message.model_dump_json().encode()
    await conn.execute(THEN_NUMBER, outbox_id, event_id, "cost.events", message.key, headers, value)


async def write(database: Database, keys: list[str], count: int, emit: Emit) -> None:
    """So many events or a few more, by all writers at once."""
    left = count

    async def writer(random: Random) -> None:
        nonlocal left
        while left > 0:
            messages = [a_cost(random.choice(keys))] * random.randint(1, MOST_IN_ONE_COMMIT)
            left -= len(messages)
            try:
                async with database.transaction() as conn:
                    for message in messages:
                        await emit(conn, message)
            except CONTENDED:
                left += len(messages)

    await asyncio.gather(*(writer(Random(f"{seed()} {number}")) for number in range(WRITERS)))


async def read_log(login: Login, keys: list[str]) -> Log:
    numbers, deliveries = defaultdict[str, dict[int, None]](dict), 0
    async with TopicReader(login, ["cost.events"]) as reader:
        async for each in reader.to_the_end():
            if each.envelope.key in keys:
                deliveries += 1
                numbers[each.envelope.key].setdefault(each.envelope.sequence)
    return Log(deliveries, {key: list(seen) for key, seen in numbers.items()})


async def all_published(db: asyncpg.Pool) -> bool:
    return not await db.fetchval("SELECT EXISTS (SELECT FROM tracker.unpublished)")


async def test_a_relay_that_is_killed_all_the_time_loses_nothing_and_keeps_the_order(
    stack: Stack, database: Database, db: asyncpg.Pool, login: Login, keys: list[str]
):
    random = Random(seed())
    async with nursery(stack.service_env("tracker")) as relays:
        writing = asyncio.create_task(
            write(database, keys, scaled(10_000, 50_000, 10_000_000), by_the_kernel)
        )
        await relays.start()
        while not (writing.done() and await all_published(db)):
            before, rows = await db.fetchval(FIRST_UNPUBLISHED), random.randint(1, 4 * BATCH_ROWS)

            async def has_moved(before: int | None = before, rows: int = rows) -> bool:
                """So many rows, or all that there are, or as many as this relay lived for."""
                first = await db.fetchval(FIRST_UNPUBLISHED)
                return relays.is_dead or before is None or first is None or first >= before + rows

            await until(has_moved, "the relay to publish")
            relays.kill()
            await relays.start(DIES_WHEN_SENT_AND_NOT_MARKED if relays.kills % 2 else "")
        await writing
    log = await read_log(login, keys)
    repeat = f"repeat with CHAOS_SEED={seed()}"
    assert log.events == await db.fetchval(FIND_WRITTEN, keys), repeat
    assert log.is_complete, repeat
    assert log.inversions == 0, repeat
    assert 0 < log.deliveries - log.events <= relays.kills * BATCHES_UNDER_WAY * BATCH_ROWS, repeat
    note("outbox order", events=log.events, kills=relays.kills, duplicates=log.deliveries - log.events)


async def test_the_same_check_finds_an_outbox_that_is_written_before_the_number_is_locked(
    stack: Stack, database: Database, db: asyncpg.Pool, login: Login, keys: list[str]
):
    async with nursery(stack.service_env("tracker")) as relays:
        await relays.start()
        await write(database, keys, 2_000, id_before_number)
        await until(lambda: all_published(db), "every event published")
    log = await read_log(login, keys)
    assert log.is_complete
    assert log.inversions > 0
    note("outbox order without the lock", events=log.events, inversions=log.inversions)
