"""SQL of webhooks: endpoints, deliveries, and the queue of each endpoint and subject.

Who writes locks the endpoint first and a queue after it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import uuid4

from services.gateway.filters import EVERYTHING, ListFilter, Order
from services.gateway.store import columns, find, select
from services.gateway.webhooks.decide import Outcome
from services.gateway.webhooks.model import Claim, Delivery, DeliveryState, Endpoint, Event, Result
from shared.postgres.database import Connection, Database, lock_name
from shared.postgres.rows import read

Source = Connection | Database
ENDPOINT = columns(Endpoint)
DELIVERY = columns(Delivery)

INSERT_ENDPOINT = f"""
    INSERT INTO webhook_endpoint (endpoint_id, tenant, name, url, event_types, nonce, created_at, updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $7) RETURNING {ENDPOINT}"""
COUNT_ENDPOINTS = "SELECT count(*) FROM webhook_endpoint WHERE tenant = $1"
FIND_ENDPOINT = f"SELECT {ENDPOINT} FROM webhook_endpoint WHERE endpoint_id = $1 AND tenant = $2"
EndpointOrder = Literal["created", "name"]
ENDPOINT_ORDERS: Mapping[EndpointOrder, Order] = {
    "created": Order("number"),
    "name": Order("lower(name)", is_rising=True),
}


def endpoints_by(name: EndpointOrder) -> str:
    order = ENDPOINT_ORDERS[name]
    return f"""
        SELECT {ENDPOINT} FROM webhook_endpoint
         WHERE tenant = $1 AND {order.after("$2", "webhook_endpoint", "endpoint_id")}
           AND ($3::text[] IS NULL
                OR CASE WHEN NOT is_enabled THEN 'disabled'
                        WHEN failing_since IS NULL THEN 'working' ELSE 'failing' END = ANY ($3))
           AND ($4::text[] IS NULL OR concat_ws(' ', endpoint_id, name, url) ILIKE ALL ($4))
         {order.by("endpoint_id")} LIMIT $5"""


LIST_ENDPOINTS = endpoints_by("created")
CHANGE_ENDPOINT = f"""
    UPDATE webhook_endpoint SET name = $2, url = $3, event_types = $4, updated_at = $5
     WHERE endpoint_id = $1 RETURNING {ENDPOINT}"""
ROTATE = f"""
    UPDATE webhook_endpoint SET nonce = $2, previous_nonce = nonce, previous_until = $3, updated_at = $4
     WHERE endpoint_id = $1 RETURNING {ENDPOINT}"""
ENABLE = f"""
    UPDATE webhook_endpoint SET is_enabled = true, disabled_reason = '', disabled_at = NULL, failing_since = NULL,
                                updated_at = $2
     WHERE endpoint_id = $1 RETURNING {ENDPOINT}"""
DISABLE = f"""
    UPDATE webhook_endpoint SET is_enabled = false, disabled_reason = $3, disabled_at = $2, updated_at = $2
     WHERE endpoint_id = $1 RETURNING {ENDPOINT}"""
DELETE_ENDPOINT = "DELETE FROM webhook_endpoint WHERE endpoint_id = $1 AND tenant = $2 RETURNING true"

FIND_DELIVERY = f"SELECT {DELIVERY} FROM webhook_delivery WHERE endpoint_id = $1 AND delivery_id = $2"
LIST_DELIVERIES = f"""
    SELECT {DELIVERY} FROM webhook_delivery
     WHERE endpoint_id = $1 AND ($2::text IS NULL OR state = $2)
       AND ($3::text IS NULL OR number < (SELECT number FROM webhook_delivery WHERE delivery_id = $3))
     ORDER BY number DESC LIMIT $4"""
LAST_DELIVERIES = f"""
    SELECT {DELIVERY} FROM unnest($1::text[]) AS endpoint (id) CROSS JOIN LATERAL (
        SELECT {DELIVERY} FROM webhook_delivery
         WHERE endpoint_id = endpoint.id ORDER BY number DESC LIMIT 1) AS last"""
NEXT_ATTEMPTS = """
    SELECT DISTINCT ON (queue.subject) delivery.delivery_id, queue.due_at
      FROM webhook_queue AS queue JOIN webhook_delivery AS delivery USING (endpoint_id, subject)
     WHERE queue.endpoint_id = $1 AND queue.subject = ANY ($2::text[]) AND delivery.state = 'pending'
     ORDER BY queue.subject, delivery.number"""

# The row of the queue is locked until the commit, and the number is taken under that lock: deliveries of one subject
# become visible in the order of their numbers, whichever processes write them.
ADD = """
    WITH endpoint AS (
        SELECT endpoint_id FROM webhook_endpoint
         WHERE tenant = $1 AND is_enabled AND $3 = ANY (event_types) ORDER BY endpoint_id FOR KEY SHARE),
    queue AS (
        INSERT INTO webhook_queue (endpoint_id, subject, due_at) SELECT endpoint_id, $4, $6 FROM endpoint
        ON CONFLICT (endpoint_id, subject) DO UPDATE SET subject = excluded.subject RETURNING endpoint_id)
    INSERT INTO webhook_delivery (delivery_id, endpoint_id, event_id, event_type, subject, body, created_at)
    SELECT 'whd_' || replace(gen_random_uuid()::text, '-', ''), endpoint_id, $2, $3, $4, $5, $6 FROM queue"""
OPEN_QUEUE = """
    INSERT INTO webhook_queue (endpoint_id, subject, due_at) VALUES ($1, $2, $3)
    ON CONFLICT (endpoint_id, subject) DO UPDATE SET subject = excluded.subject"""
REPLAY = f"""
    INSERT INTO webhook_delivery (delivery_id, endpoint_id, event_id, event_type, subject, body, replay_of,
                                  created_at)
    SELECT $2, endpoint_id, event_id, event_type, subject, body, delivery_id, $3
      FROM webhook_delivery WHERE delivery_id = $1 RETURNING {DELIVERY}"""
INSERT_TEST = """
    INSERT INTO webhook_delivery (delivery_id, endpoint_id, event_id, event_type, subject, body, created_at,
                                  state, attempts, first_attempt_at, last_attempt_at, status_code, error)
    SELECT $1, endpoint_id, $3, $4, $5, $6, $7, $8, 1, $7, $7, $9, $10
      FROM webhook_endpoint WHERE endpoint_id = $2 FOR KEY SHARE"""

IS_ANY_DUE = """
    SELECT EXISTS (SELECT FROM webhook_queue
                    WHERE due_at <= statement_timestamp()
                      AND (lease_expires_at IS NULL OR lease_expires_at < statement_timestamp()))"""
# At most one queue of each endpoint at once, those first that do not fail and of which least is under way; of those
# that fail at most $5. It reads as many rows as there are endpoints with a queue. A queue that is being written is
# left for the next time.
CLAIM = """
    WITH RECURSIVE waiting AS (
        (SELECT endpoint_id FROM webhook_queue ORDER BY endpoint_id LIMIT 1)
        UNION ALL
        SELECT following.endpoint_id FROM waiting CROSS JOIN LATERAL (
            SELECT endpoint_id FROM webhook_queue WHERE endpoint_id > waiting.endpoint_id
             ORDER BY endpoint_id LIMIT 1) AS following),
    busy AS (
        SELECT endpoint_id, count(*) AS running FROM webhook_queue
         WHERE lease_expires_at >= statement_timestamp() GROUP BY endpoint_id),
    due AS (
        SELECT oldest.endpoint_id, oldest.subject, oldest.due_at, coalesce(busy.running, 0) AS running,
               endpoint.failing_since IS NOT NULL AS is_failing
          FROM waiting JOIN webhook_endpoint AS endpoint USING (endpoint_id) LEFT JOIN busy USING (endpoint_id)
         CROSS JOIN LATERAL (
            SELECT endpoint_id, subject, due_at FROM webhook_queue AS queue
             WHERE queue.endpoint_id = waiting.endpoint_id AND due_at <= statement_timestamp()
               AND (lease_expires_at IS NULL OR lease_expires_at < statement_timestamp())
             ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED) AS oldest
         WHERE endpoint.is_enabled
           AND coalesce(busy.running, 0) < CASE WHEN endpoint.failing_since IS NULL THEN $3::int ELSE 1 END),
    ranked AS (
        SELECT endpoint_id, subject, due_at, running, is_failing,
               row_number() OVER (PARTITION BY is_failing ORDER BY running, due_at) AS place FROM due),
    chosen AS (
        SELECT endpoint_id, subject, is_failing FROM ranked WHERE NOT is_failing OR place <= $5
         ORDER BY is_failing, running, due_at LIMIT $4)
    UPDATE webhook_queue AS queue
       SET lease_owner = $1, lease_token = lease_token + 1, lease_expires_at = clock_timestamp() + $2::interval
      FROM chosen WHERE queue.endpoint_id = chosen.endpoint_id AND queue.subject = chosen.subject
    RETURNING queue.endpoint_id, queue.subject, queue.lease_token, chosen.is_failing"""
FREE_OWN = "UPDATE webhook_queue SET lease_owner = NULL, lease_expires_at = NULL WHERE lease_owner = $1"
FIRST_OF_QUEUE = f"""
    SELECT {DELIVERY} FROM webhook_delivery
     WHERE endpoint_id = $1 AND subject = $2 AND state = 'pending' ORDER BY number LIMIT 1"""
GET_ENDPOINT = f"SELECT {ENDPOINT} FROM webhook_endpoint WHERE endpoint_id = $1"
HOLD_ENDPOINT = f"{GET_ENDPOINT} FOR NO KEY UPDATE"
HOLD_QUEUE = """
    SELECT true FROM webhook_queue WHERE endpoint_id = $1 AND subject = $2 AND lease_token = $3 FOR UPDATE"""
SAVE_ATTEMPT = """
    UPDATE webhook_delivery SET state = $2, attempts = attempts + 1, status_code = $3, error = $4,
                                first_attempt_at = coalesce(first_attempt_at, $5), last_attempt_at = $5
     WHERE delivery_id = $1"""
SET_FAILING = "UPDATE webhook_endpoint SET failing_since = $2 WHERE endpoint_id = $1"
FREE_QUEUE = """
    UPDATE webhook_queue SET due_at = CASE WHEN $4 THEN $3 ELSE 'infinity'::timestamptz END,
                             lease_owner = NULL, lease_expires_at = NULL
     WHERE endpoint_id = $1 AND subject = $2"""
IS_EMPTY = """
    SELECT NOT EXISTS (SELECT FROM webhook_delivery
                        WHERE endpoint_id = $1 AND subject = $2 AND state = 'pending')"""
DELETE_QUEUE = "DELETE FROM webhook_queue WHERE endpoint_id = $1 AND subject = $2"
HURRY_QUEUES = "UPDATE webhook_queue SET due_at = $2 WHERE endpoint_id = $1 AND due_at > $2"
HALT_QUEUES = "UPDATE webhook_queue SET due_at = 'infinity' WHERE endpoint_id = $1"
FORGET_FIRST_ATTEMPTS = """
    UPDATE webhook_delivery SET first_attempt_at = NULL WHERE endpoint_id = $1 AND state = 'pending'"""
OLDEST_WAITING = """
    SELECT min(oldest.created_at) FROM webhook_queue AS queue CROSS JOIN LATERAL (
        SELECT created_at FROM webhook_delivery AS delivery
         WHERE delivery.endpoint_id = queue.endpoint_id AND delivery.subject = queue.subject AND state = 'pending'
         ORDER BY number LIMIT 1) AS oldest
     WHERE queue.due_at < 'infinity'"""

PRUNE_DELIVERIES = """
    DELETE FROM webhook_delivery WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM webhook_delivery WHERE created_at < now() - $1::interval LIMIT $2))"""
# Queues of endpoints that are switched off, whose deliveries were pruned. A queue that is written meanwhile stays.
PRUNE_QUEUES = """
    DELETE FROM webhook_queue WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM webhook_queue AS queue
         WHERE due_at = 'infinity' AND $1::interval IS NOT NULL
           AND (SELECT true FROM webhook_delivery AS delivery
                 WHERE delivery.endpoint_id = queue.endpoint_id AND delivery.subject = queue.subject
                   AND state = 'pending' LIMIT 1) IS NULL LIMIT $2))"""
PRUNED = (PRUNE_DELIVERIES, PRUNE_QUEUES)


async def insert_endpoint(
    conn: Connection,
    endpoint_id: str,
    tenant: str,
    *,
    name: str,
    url: str,
    event_types: Sequence[str],
    nonce: str,
    now: datetime,
) -> Endpoint:
    values = endpoint_id, tenant, name, url, event_types, nonce, now
    return _present(await find(Endpoint, conn, INSERT_ENDPOINT, *values))


async def count_endpoints(conn: Connection, tenant: str) -> int:
    """Return how many the tenant has; until the commit nobody else counts them to add one."""
    await lock_name(conn, f"webhook endpoints of {tenant}")
    count: int = await conn.fetchval(COUNT_ENDPOINTS, tenant)
    return count


async def find_endpoint(source: Source, endpoint_id: str, tenant: str) -> Endpoint | None:
    return await find(Endpoint, source, FIND_ENDPOINT, endpoint_id, tenant)


async def list_endpoints(
    database: Database,
    tenant: str,
    *,
    after: str | None,
    limit: int,
    only: ListFilter = EVERYTHING,
    order: EndpointOrder = "created",
) -> list[Endpoint]:
    """Words of `only` are searched in the id, the name and the URL. Its states are working, failing and disabled."""
    return await select(Endpoint, database, endpoints_by(order), tenant, after, *only.values, limit)


async def change_endpoint(
    conn: Connection, endpoint_id: str, *, name: str, url: str, event_types: Sequence[str], now: datetime
) -> Endpoint:
    return _present(await find(Endpoint, conn, CHANGE_ENDPOINT, endpoint_id, name, url, event_types, now))


async def rotate(
    conn: Connection, endpoint_id: str, nonce: str, *, previous_until: datetime | None, now: datetime
) -> Endpoint:
    return _present(await find(Endpoint, conn, ROTATE, endpoint_id, nonce, previous_until, now))


async def enable(conn: Connection, endpoint_id: str, *, now: datetime) -> Endpoint:
    """Send again what waits, each for as long as if it had never been tried."""
    endpoint = _present(await find(Endpoint, conn, ENABLE, endpoint_id, now))
    await conn.execute(FORGET_FIRST_ATTEMPTS, endpoint_id)
    await conn.execute(HURRY_QUEUES, endpoint_id, now)
    return endpoint


async def disable(conn: Connection, endpoint_id: str, reason: str, *, now: datetime) -> Endpoint:
    """Keep what waits, and send none of it. The caller holds the endpoint."""
    endpoint = _present(await find(Endpoint, conn, DISABLE, endpoint_id, now, reason))
    await conn.execute(HALT_QUEUES, endpoint_id)
    return endpoint


def _present(endpoint: Endpoint | None) -> Endpoint:
    assert endpoint is not None, "the caller holds its row"
    return endpoint


async def hold_endpoint(conn: Connection, endpoint_id: str) -> Endpoint | None:
    """Return the endpoint, which nobody else changes or deletes before the commit."""
    return await find(Endpoint, conn, HOLD_ENDPOINT, endpoint_id)


async def delete_endpoint(conn: Connection, endpoint_id: str, tenant: str) -> bool:
    """Delete it with its deliveries; return whether there was one."""
    return bool(await conn.fetchval(DELETE_ENDPOINT, endpoint_id, tenant))


async def find_delivery(source: Source, endpoint_id: str, delivery_id: str) -> Delivery | None:
    return await find(Delivery, source, FIND_DELIVERY, endpoint_id, delivery_id)


async def list_deliveries(
    database: Database, endpoint_id: str, *, state: DeliveryState | None, after: str | None, limit: int
) -> list[Delivery]:
    return await select(Delivery, database, LIST_DELIVERIES, endpoint_id, state, after, limit)


async def last_deliveries(database: Database, endpoint_ids: Sequence[str]) -> dict[str, Delivery]:
    """Return the newest delivery of each endpoint that has one."""
    rows = await select(Delivery, database, LAST_DELIVERIES, endpoint_ids)
    return {row.endpoint_id: row for row in rows}


async def next_attempts(
    database: Database, endpoint_id: str, deliveries: Sequence[Delivery]
) -> dict[str, datetime]:
    """Return when those of the deliveries are sent that are first in their queues."""
    subjects = [each.subject for each in deliveries if each.state == "pending"]
    rows = await database.fetch(NEXT_ATTEMPTS, endpoint_id, subjects)
    return {row["delivery_id"]: row["due_at"] for row in rows}


async def add(conn: Connection, tenant: str, event: Event, *, now: datetime) -> None:
    """Have the event delivered to each endpoint of the tenant that asked for its type."""
    await conn.execute(ADD, tenant, event.id, event.type, event.subject, event.body, now)


async def replay(conn: Connection, delivery: Delivery, *, now: datetime) -> Delivery:
    """Deliver the event again, behind what waits of its subject. The caller holds the endpoint."""
    await conn.execute(OPEN_QUEUE, delivery.endpoint_id, delivery.subject, now)
    again = await find(Delivery, conn, REPLAY, delivery.delivery_id, new_delivery_id(), now)
    assert again is not None, "the caller has read it in this transaction"
    return again


async def insert_test(
    conn: Connection, endpoint_id: str, event: Event, state: DeliveryState, result: Result, *, now: datetime
) -> None:
    of_event = event.id, event.type, event.subject, event.body, now
    values = *of_event, state, result.status_code, result.error
    await conn.execute(INSERT_TEST, new_delivery_id(), endpoint_id, *values)


def new_delivery_id() -> str:
    return f"whd_{uuid4().hex}"


async def claim(
    database: Database, owner: str, *, lease: timedelta, of_an_endpoint: int, limit: int, failing: int
) -> list[Claim]:
    """Lease queues whose first delivery is due, at most `limit`, of which at most `failing` of endpoints that fail.

    One process at a time does, so that nothing is counted twice.
    """
    if not await database.fetchval(IS_ANY_DUE):
        return []
    async with database.transaction() as conn:
        await lock_name(conn, "webhooks")
        values = owner, lease, of_an_endpoint, limit, failing
        return [read(Claim, row) for row in await conn.fetch(CLAIM, *values)]


async def free_own(database: Database, owner: str) -> bool:
    """Free what a process with this name held that has ended."""
    await database.execute(FREE_OWN, owner)
    return True


async def first_of(database: Database, claim: Claim) -> tuple[Endpoint, Delivery] | None:
    """Return what to send; None where nothing of the queue waits any more."""
    delivery = await find(Delivery, database, FIRST_OF_QUEUE, claim.endpoint_id, claim.subject)
    endpoint = await find(Endpoint, database, GET_ENDPOINT, claim.endpoint_id)
    return None if delivery is None or endpoint is None else (endpoint, delivery)


async def hold_queue(conn: Connection, claim: Claim) -> bool:
    """Return whether the lease is still the claim's; then it stays until the commit."""
    return bool(await conn.fetchval(HOLD_QUEUE, claim.endpoint_id, claim.subject, claim.lease_token))


async def save_attempt(
    conn: Connection,
    delivery: Delivery,
    endpoint: Endpoint,
    result: Result,
    outcome: Outcome,
    *,
    now: datetime,
) -> None:
    """Write what an attempt ended with. The caller holds the endpoint, which is as it is now, and the queue."""
    attempt = outcome.state, result.status_code, result.error, now
    await conn.execute(SAVE_ATTEMPT, delivery.delivery_id, *attempt)
    if endpoint.failing_since != outcome.failing_since:
        await conn.execute(SET_FAILING, endpoint.endpoint_id, outcome.failing_since)
    if outcome.disabled_reason and endpoint.is_enabled:
        await disable(conn, endpoint.endpoint_id, outcome.disabled_reason, now=now)
    if endpoint.failing_since and outcome.failing_since is None:
        await conn.execute(HURRY_QUEUES, endpoint.endpoint_id, now)


async def free_queue(conn: Connection, claim: Claim, *, is_enabled: bool, due_at: datetime) -> None:
    """End the lease, and the queue where it is empty. The caller holds the queue."""
    if await conn.fetchval(IS_EMPTY, claim.endpoint_id, claim.subject):
        await conn.execute(DELETE_QUEUE, claim.endpoint_id, claim.subject)
    else:
        await conn.execute(FREE_QUEUE, claim.endpoint_id, claim.subject, due_at, is_enabled)


async def oldest_waiting(database: Database) -> datetime | None:
    """Return when the oldest delivery was created of those that are to be sent."""
    created_at: datetime | None = await database.fetchval(OLDEST_WAITING)
    return created_at
