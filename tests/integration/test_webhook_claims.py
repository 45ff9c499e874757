"""Which queues of webhooks a process is given: a share of each endpoint, and little of those that fail."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from deploy.local.stack import Stack
from services.gateway.webhooks import store
from services.gateway.webhooks.model import Claim
from shared.postgres.database import Database
from shared.postgres.migrate import migrate
from tests.integration.scratch import empty_schema

pytestmark = pytest.mark.stack

LEASE = timedelta(seconds=60)
ADD_ENDPOINT = """
    INSERT INTO webhook_endpoint (endpoint_id, tenant, name, url, event_types, nonce, failing_since, created_at,
                                  updated_at)
    VALUES ($1, 'demo', '', '', '{}', '', CASE WHEN $2 THEN now() END, now(), now())"""
ADD_QUEUE = (
    "INSERT INTO webhook_queue (endpoint_id, subject, due_at) VALUES ($1, $2, now() - interval '1 second')"
)
ADD_OLD = """
    INSERT INTO webhook_delivery (delivery_id, endpoint_id, event_id, event_type, subject, body, created_at)
    SELECT subject, endpoint_id, '', '', subject, '', now() - interval '31 days' FROM webhook_queue"""


@pytest.fixture(scope="module")
async def empty_database(stack: Stack) -> AsyncIterator[Database]:
    async with empty_schema(stack) as dsn:
        await migrate("gateway", dsn)
        database = Database(dsn, application="webhook-claims")
        await database.open()
        yield database
        await database.close()


@pytest.fixture
async def database(empty_database: Database) -> Database:
    await empty_database.execute("DELETE FROM webhook_endpoint")
    return empty_database


async def add(database: Database, endpoint_id: str, *, queues: int = 1, is_failing: bool = False) -> None:
    await database.execute(ADD_ENDPOINT, endpoint_id, is_failing)
    for number in range(queues):
        await database.execute(ADD_QUEUE, endpoint_id, f"{endpoint_id} {number}")


async def claimed(
    database: Database, owner: str = "gateway-0", *, limit: int = 100, failing: int = 100
) -> Sequence[Claim]:
    """What repeated claims come to."""
    claims: list[Claim] = []
    while more := await store.claim(
        database, owner, lease=LEASE, of_an_endpoint=4, limit=limit - len(claims), failing=failing
    ):
        claims += more
        if len(claims) >= limit:
            break
    return claims


async def test_endpoints_have_four_queues_at_once_and_one_where_they_fail(database):
    await add(database, "a", queues=6)
    await add(database, "b", queues=2)
    await add(database, "c", queues=6, is_failing=True)
    assert Counter(claim.endpoint_id for claim in await claimed(database)) == {"a": 4, "b": 2, "c": 1}


async def test_endpoints_that_fail_come_last_and_take_no_more_than_their_part(database):
    for number in range(5):
        await add(database, f"failing {number}", is_failing=True)
    await add(database, "well", queues=2)
    first = await store.claim(database, "gateway-0", lease=LEASE, of_an_endpoint=4, limit=1, failing=2)
    assert [claim.endpoint_id for claim in first] == ["well"]
    rest = await store.claim(database, "gateway-0", lease=LEASE, of_an_endpoint=4, limit=10, failing=2)
    assert Counter(claim.is_failing for claim in rest) == {False: 1, True: 2}


async def test_two_processes_never_have_the_same_queue(database):
    for number in range(10):
        await add(database, f"endpoint {number}", queues=4)
    claims = [
        each
        for part in await asyncio.gather(*(claimed(database, f"gateway-{n}") for n in (0, 1)))
        for each in part
    ]
    assert len(claims) == len({claim.subject for claim in claims}) == 40
    await store.free_own(database, "gateway-0")
    freed = await claimed(database, "gateway-2")
    assert await claimed(database, "gateway-3") == []
    assert all(claim.lease_token == 2 for claim in freed)


async def test_what_was_leased_is_free_once_the_lease_is_over(database):
    await add(database, "a")
    assert len(await claimed(database)) == 1
    await database.execute("UPDATE webhook_queue SET lease_expires_at = now() - interval '1 second'")
    async with database.transaction() as conn:
        (again,) = await claimed(database, "gateway-1")
        assert await store.hold_queue(conn, again)
        assert not await store.hold_queue(conn, Claim("a", again.subject, 1, is_failing=False))


async def test_old_deliveries_are_pruned_and_so_are_queues_that_have_none_and_are_not_sent(database):
    await add(database, "off", queues=3)
    await add(database, "on")
    await database.execute(ADD_OLD)
    async with database.transaction() as conn:
        await store.disable(conn, "off", "why not", now=database.now())
    assert {claim.endpoint_id for claim in await claimed(database)} == {"on"}
    for query in store.PRUNED:
        await database.execute(query, timedelta(days=30), 2)
    assert await database.fetchval("SELECT count(*) FROM webhook_delivery") == 2
    for query in store.PRUNED:
        await database.execute(query, timedelta(days=30), 10)
    rows = await database.fetch("SELECT endpoint_id FROM webhook_queue")
    assert [row["endpoint_id"] for row in rows] == ["on"]
    assert await database.fetchval("SELECT count(*) FROM webhook_delivery") == 0
