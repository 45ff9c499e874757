"""SQL of the provisioner's schema; the only file that knows column names. It is the truth of capacity."""

from collections.abc import Iterable

from asyncpg import Record

from schemas.base import CapacityType, DeviceKind
from services.provisioner.model import Attempt, AttemptState, Node, Pool
from shared.errors import StaleWrite
from shared.postgres.database import Connection

LOCK_POOL = """
    SELECT name, capacity_type, nodes, devices_per_node, price_per_hour, file_nodes, device,
           device_memory_bytes
      FROM pool WHERE name = $1 FOR UPDATE"""

LOCK_POOLS = """
    SELECT name, capacity_type, nodes, devices_per_node, price_per_hour, file_nodes, device,
           device_memory_bytes
      FROM pool ORDER BY name FOR UPDATE"""

COUNT_HELD = "SELECT count(*) FROM node WHERE pool = $1 AND released_at IS NULL"

SAVE_POOL = """
    INSERT INTO pool (name, capacity_type, nodes, devices_per_node, price_per_hour, file_nodes, device,
                      device_memory_bytes)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (name) DO UPDATE SET capacity_type = $2, nodes = $3, devices_per_node = $4,
                                     price_per_hour = $5, file_nodes = $6, device = $7,
                                     device_memory_bytes = $8"""

LOCK_ATTEMPT = """
    SELECT job_id, number, tenant, state, pool, capacity_type, devices_per_node, grace_seconds, start_deadline,
           stop_deadline, has_started, was_created, failure_code, failure_message, revision
      FROM attempt WHERE job_id = $1 AND number = $2 FOR UPDATE"""

SELECT_NODES = """
    SELECT node_id, index, price_per_hour, allocated_at, released_at, has_ended, exit_code, notice_deadline
      FROM node WHERE job_id = $1 AND number = $2 ORDER BY index"""

INSERT_ATTEMPT = """
    INSERT INTO attempt (job_id, number, name, tenant, state, pool, capacity_type, devices_per_node,
                         grace_seconds, start_deadline, stop_deadline, failure_code, failure_message, gone_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
            CASE WHEN $5 IN ('refused', 'released') THEN now() END)"""

UPDATE_ATTEMPT = """
    UPDATE attempt SET state = $3, stop_deadline = $4, has_started = $5, was_created = $6, failure_code = $7,
                       failure_message = $8, revision = revision + 1,
                       gone_at = CASE WHEN $3 IN ('refused', 'released') THEN coalesce(gone_at, now()) END
     WHERE job_id = $1 AND number = $2 AND revision = $9 RETURNING revision"""

INSERT_NODE = """
    INSERT INTO node (node_id, job_id, number, index, pool, price_per_hour, allocated_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)"""

UPDATE_NODE = """
    UPDATE node SET allocated_at = $2, released_at = $3, has_ended = $4, exit_code = $5, notice_deadline = $6
     WHERE node_id = $1"""

FIND_ATTEMPT_OF_NODE = "SELECT job_id, number FROM node WHERE node_id = $1"

FIND_NEWEST = "SELECT job_id, number FROM attempt WHERE job_id = $1 ORDER BY number DESC LIMIT 1"

FIND_BY_NAME = "SELECT job_id, number FROM attempt WHERE name = $1"

STATES = "SELECT name, state FROM attempt WHERE name = ANY($1)"


PRUNE_NODES = """
    DELETE FROM node WHERE ctid = ANY(ARRAY(
        SELECT row.ctid FROM attempt CROSS JOIN LATERAL (
            SELECT ctid FROM node WHERE (node.job_id, node.number) = (attempt.job_id, attempt.number) LIMIT $2) AS row
         WHERE gone_at < now() - $1::interval LIMIT $2))"""

PRUNE_ATTEMPTS = """
    DELETE FROM attempt WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM attempt
         WHERE gone_at < now() - $1::interval
           AND (SELECT true FROM node
                 WHERE (node.job_id, node.number) = (attempt.job_id, attempt.number) LIMIT 1) IS NULL
         LIMIT $2))"""


async def lock_pool(conn: Connection, name: str) -> Pool | None:
    row = await conn.fetchrow(LOCK_POOL, name)
    return _pool(row, await conn.fetchval(COUNT_HELD, name)) if row else None


async def lock_pools(conn: Connection) -> dict[str, Pool]:
    rows = await conn.fetch(LOCK_POOLS)
    return {row["name"]: _pool(row, await conn.fetchval(COUNT_HELD, row["name"])) for row in rows}


async def save_pool(conn: Connection, pool: Pool) -> None:
    await conn.execute(
        SAVE_POOL,
        pool.name,
        pool.capacity_type,
        pool.nodes,
        pool.devices_per_node,
        pool.price_per_hour,
        pool.file_nodes,
        pool.device,
        pool.device_memory_bytes,
    )


async def lock_attempt(conn: Connection, job_id: str, number: int) -> Attempt | None:
    row = await conn.fetchrow(LOCK_ATTEMPT, job_id, number)
    return _attempt(row, await conn.fetch(SELECT_NODES, job_id, number)) if row else None


async def lock_attempt_of(conn: Connection, target: str) -> Attempt | None:
    """Of a node id, or of `job:<job id>`: the job's newest attempt."""
    job_id = target.removeprefix("job:")
    query = FIND_ATTEMPT_OF_NODE if job_id == target else FIND_NEWEST
    row = await conn.fetchrow(query, job_id)
    return await lock_attempt(conn, row["job_id"], row["number"]) if row else None


async def lock_attempt_named(conn: Connection, name: str) -> Attempt | None:
    row = await conn.fetchrow(FIND_BY_NAME, name)
    return await lock_attempt(conn, row["job_id"], row["number"]) if row else None


async def states_of(conn: Connection, names: Iterable[str]) -> dict[str, AttemptState | None]:
    """Of each name its attempt's state; None where there is no such attempt."""
    states = {row["name"]: AttemptState(row["state"]) for row in await conn.fetch(STATES, list(names))}
    return {name: states.get(name) for name in names}


async def save_attempt(conn: Connection, before: Attempt | None, after: Attempt) -> None:
    """Write what changed, unless someone else wrote since `before` was read (StaleWrite, retryable)."""
    if before is None:
        await _insert(conn, after)
    elif after != before:
        await _update(conn, before, after)


async def _insert(conn: Connection, attempt: Attempt) -> None:
    await conn.execute(
        INSERT_ATTEMPT,
        attempt.job_id,
        attempt.number,
        attempt.name,
        attempt.tenant,
        attempt.state,
        attempt.pool,
        attempt.capacity_type,
        attempt.devices_per_node,
        attempt.grace_seconds,
        attempt.start_deadline,
        attempt.stop_deadline,
        attempt.failure_code,
        attempt.failure_message,
    )
    for node in attempt.nodes:
        await conn.execute(
            INSERT_NODE,
            node.node_id,
            attempt.job_id,
            attempt.number,
            node.index,
            attempt.pool,
            node.price_per_hour,
            node.allocated_at,
        )


async def _update(conn: Connection, before: Attempt, after: Attempt) -> None:
    revision = await conn.fetchval(
        UPDATE_ATTEMPT,
        after.job_id,
        after.number,
        after.state,
        after.stop_deadline,
        after.has_started,
        after.was_created,
        after.failure_code,
        after.failure_message,
        before.revision,
    )
    if revision is None:
        raise StaleWrite(f"attempt {after.name} changed since revision {before.revision}")
    for node in set(after.nodes) - set(before.nodes):
        await _update_node(conn, node)


async def _update_node(conn: Connection, node: Node) -> None:
    await conn.execute(
        UPDATE_NODE,
        node.node_id,
        node.allocated_at,
        node.released_at,
        node.has_ended,
        node.exit_code,
        node.notice_deadline,
    )


def _pool(row: Record, held: int) -> Pool:
    kinds = {
        "capacity_type": CapacityType(row["capacity_type"]),
        "device": row["device"] and DeviceKind(row["device"]),
    }
    return Pool(**dict(row) | kinds, held=held)


def _attempt(row: Record, nodes: list[Record]) -> Attempt:
    fields = dict(row) | {
        "state": AttemptState(row["state"]),
        "capacity_type": CapacityType(row["capacity_type"]),
        "nodes": tuple(Node(**dict(node)) for node in nodes),
    }
    return Attempt(**fields)
