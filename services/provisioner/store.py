"""SQL of the provisioner's schema; the only file that knows column names. It is the truth of capacity."""

from collections.abc import Iterable
from datetime import datetime

from asyncpg import Record

from services.provisioner.machines import Cordon, Failure
from services.provisioner.model import Attempt, AttemptState, Lease, Node, Pool
from shared.errors import StaleWrite
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read

POOL = Columns(
    "name, capacity_type, nodes, devices_per_node, price_per_device_hour, file_nodes, drained, device,"
    " device_memory_bytes, accelerator, first_device, max_devices_per_job, tenants, is_removed, backend,"
    " cordon_after_failures"
)
ATTEMPT = Columns(
    "job_id, number, tenant, state, pool, capacity_type, devices_per_node, device, grace_seconds, origin"
)
PROGRESS = Columns(
    "stop_deadline, has_started, was_created, failure_code, failure_message, start_deadline, waiting_for"
)
NODE = Columns(
    "node_id, index, price_per_hour, allocated_at, machine, devices, released_at, has_ended, exit_code,"
    " notice_deadline, host, public_key"
)
FAILURE = Columns("node_id, pool, machine, devices, job_id, number, failed_at, message, kind, is_past")
LEASE_FAILURE = Columns(
    "node_id, pool, machine, devices, lease_id, holder, purpose, failed_at, message, has_lost_machine, is_past"
)
CORDON = Columns("pool, machine, source, reason")
LEASE = Columns(
    "lease_id, holder, purpose, pool, num_devices, asked_at, until, state, machine, devices, end_reason=end,"
    " end_message, node_name=node.name, node_state=node.state, host=node.host, node_address=node.address,"
    " public_key=node.public_key, notice_deadline=node.notice_deadline, notice_source=node.notice_source,"
    " waiting_for=node.waiting_for"
)

LOCK_POOL = f"SELECT {POOL.selected} FROM pool WHERE name = $1 FOR UPDATE"

LOCK_POOLS = f"SELECT {POOL.selected} FROM pool ORDER BY name FOR UPDATE"

COUNTED_POOLS = "SELECT name FROM pool WHERE file_nodes IS NULL AND NOT is_removed ORDER BY name"

COUNT_DEVICES = "SELECT name, capacity_type, nodes * devices_per_node FROM pool WHERE NOT is_removed"
COUNT_HELD = """
    SELECT name, capacity_type, count(device_lease.pool)
      FROM pool LEFT JOIN device_lease ON device_lease.pool = pool.name WHERE NOT is_removed
     GROUP BY name, capacity_type"""
COUNT_CORDONED = """
    SELECT name, count(cordon.pool) FROM pool LEFT JOIN cordon ON cordon.pool = pool.name
     WHERE NOT is_removed GROUP BY name"""

CORDONED = "SELECT machine FROM cordon WHERE pool = $1 ORDER BY machine"
ADD_CORDON = f"""
    INSERT INTO cordon ({CORDON.names}) VALUES ({CORDON.parameters()})
    ON CONFLICT (pool, machine) DO UPDATE SET source = excluded.source, reason = excluded.reason"""
REMOVE_CORDON = "DELETE FROM cordon WHERE (pool, machine) = ($1, $2)"
MARK_PAST = "UPDATE machine_failure SET is_past = true WHERE (pool, machine) = ($1, $2) AND NOT is_past"
MARK_PAST_UNDER_LEASES = (
    "UPDATE lease_failure SET is_past = true WHERE (pool, machine) = ($1, $2) AND NOT is_past"
)

# A node fails once: that it was lost and that training failed there are one failure.
ADD_FAILURE = f"""
    INSERT INTO machine_failure ({FAILURE.names}) VALUES ({FAILURE.parameters()}) ON CONFLICT (node_id) DO NOTHING"""
FAILURES_OF_MACHINE = f"""
    SELECT {FAILURE.selected} FROM machine_failure
     WHERE (pool, machine) = ($1, $2) AND failed_at >= $3 AND NOT is_past ORDER BY failed_at, node_id"""
FAILURES_OF_ATTEMPT = f"""
    SELECT {FAILURE.selected} FROM machine_failure WHERE (job_id, number) = ($1, $2) ORDER BY node_id"""
NEWEST_FAILURES = f"""
    SELECT {FAILURE.selected} FROM machine_failure
     WHERE pool = $1 ORDER BY failed_at DESC, node_id LIMIT $2"""
# That the machine was lost may be known later than that the node ended.
ADD_LEASE_FAILURE = f"""
    INSERT INTO lease_failure ({LEASE_FAILURE.names}) VALUES ({LEASE_FAILURE.parameters()})
    ON CONFLICT (node_id) DO UPDATE
       SET has_lost_machine = true, message = excluded.message
     WHERE excluded.has_lost_machine AND NOT lease_failure.has_lost_machine"""
LEASE_FAILURES_OF_MACHINE = f"""
    SELECT {LEASE_FAILURE.selected} FROM lease_failure
     WHERE (pool, machine) = ($1, $2) AND failed_at >= $3 AND NOT is_past ORDER BY failed_at, node_id"""
NEWEST_LEASE_FAILURES = f"""
    SELECT {LEASE_FAILURE.selected} FROM lease_failure
     WHERE pool = $1 AND ($2::text IS NULL OR holder = $2) ORDER BY failed_at DESC, node_id LIMIT $3"""
PRUNE_LEASE_FAILURES = """
    DELETE FROM lease_failure WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM lease_failure WHERE failed_at < now() - $1::interval LIMIT $2))"""
PRUNE_FAILURES = """
    DELETE FROM machine_failure WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM machine_failure WHERE failed_at < now() - $1::interval LIMIT $2))"""

LEASED = "SELECT machine, array_agg(device) AS devices FROM device_lease WHERE pool = $1 GROUP BY machine"

OPEN_LEASES = f"""
    SELECT {LEASE.selected} FROM service_lease WHERE pool = $1 AND state <> 'ended' ORDER BY asked_at, lease_id"""
FIND_LEASE = f"SELECT {LEASE.selected} FROM service_lease WHERE lease_id = $1"
FIND_LEASE_OF_NODE = "SELECT lease_id FROM service_lease WHERE node_name = $1"
LEASED_NAMES = "SELECT node_name FROM service_lease WHERE node_name = ANY($1) AND state <> 'ended'"
SAVE_LEASE = f"""
    INSERT INTO service_lease ({LEASE.names}, ended_at)
    VALUES ({LEASE.parameters()}, CASE WHEN $8 = 'ended' THEN now() END)
    ON CONFLICT (lease_id) DO UPDATE SET {LEASE.excluded}, ended_at = excluded.ended_at"""
ADD_LEASED = """
    INSERT INTO device_lease (pool, machine, device, lease_id) SELECT $1, $2, unnest($3::int[]), $4"""
REMOVE_LEASED = "DELETE FROM device_lease WHERE lease_id = $1"
PRUNE_SERVICE_LEASES = """
    DELETE FROM service_lease WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM service_lease WHERE ended_at < now() - $1::interval LIMIT $2))"""

SAVE_POOL = f"""
    INSERT INTO pool ({POOL.names}) VALUES ({POOL.parameters()})
    ON CONFLICT (name) DO UPDATE SET {POOL.excluded}"""

LOCK_ATTEMPT = f"""
    SELECT {ATTEMPT.selected}, {PROGRESS.selected}, revision
      FROM attempt WHERE job_id = $1 AND number = $2 FOR UPDATE"""

SELECT_NODES = f"SELECT {NODE.selected} FROM node WHERE job_id = $1 AND number = $2 ORDER BY index"

INSERT_ATTEMPT = f"""
    INSERT INTO attempt ({ATTEMPT.names}, {PROGRESS.names}, name, gone_at)
    VALUES ({ATTEMPT.parameters()}, {PROGRESS.parameters(11)}, $18,
            CASE WHEN $4 IN ('refused', 'released') THEN now() END)"""

UPDATE_ATTEMPT = f"""
    UPDATE attempt SET state = $4, ({PROGRESS.names}) = ROW({PROGRESS.parameters(5)}), revision = revision + 1,
                       gone_at = CASE WHEN $4 IN ('refused', 'released') THEN coalesce(gone_at, now()) END
     WHERE job_id = $1 AND number = $2 AND revision = $3 RETURNING revision"""

INSERT_NODE = f"""
    INSERT INTO node ({NODE.names}, job_id, number, pool) VALUES ({NODE.parameters()}, $13, $14, $15)"""

UPDATE_NODE = f"UPDATE node SET ({NODE.names}) = ROW({NODE.parameters()}) WHERE node_id = $1"

ADD_LEASES = "INSERT INTO device_lease (pool, machine, device, node_id) SELECT $1, $2, unnest($3::int[]), $4"
REMOVE_LEASES = "DELETE FROM device_lease WHERE node_id = $1"

FIND_BESIDE = """
    SELECT DISTINCT node.job_id, node.number
      FROM node AS own
      JOIN device_lease AS lease ON (lease.pool, lease.machine) = (own.pool, own.machine)
      JOIN node ON node.node_id = lease.node_id
     WHERE (own.job_id, own.number) = ($1, $2)
     ORDER BY node.job_id, node.number"""

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
    return await _with_leases(conn, row) if row else None


async def lock_pools(conn: Connection) -> dict[str, Pool]:
    return {row["name"]: await _with_leases(conn, row) for row in await conn.fetch(LOCK_POOLS)}


async def counted_pools(conn: Connection) -> list[str]:
    """Return the names of pools that have as many nodes as their cluster."""
    return [row["name"] for row in await conn.fetch(COUNTED_POOLS)]


async def _with_leases(conn: Connection, row: Record) -> Pool:
    """Read once the pool is locked: nobody else leases devices of it then."""
    leased = {each["machine"]: each["devices"] for each in await conn.fetch(LEASED, row["name"])}
    cordoned = [each["machine"] for each in await conn.fetch(CORDONED, row["name"])]
    leases = tuple(read(Lease, each) for each in await conn.fetch(OPEN_LEASES, row["name"]))
    return read(Pool, row, leased=leased, leases=leases, cordoned=cordoned)


async def find_lease(conn: Connection, lease_id: str) -> Lease | None:
    row = await conn.fetchrow(FIND_LEASE, lease_id)
    return read(Lease, row) if row else None


async def find_lease_of_node(conn: Connection, name: str) -> Lease | None:
    """Return the lease whose node has this name at its cluster backend."""
    lease_id = await conn.fetchval(FIND_LEASE_OF_NODE, name)
    return await find_lease(conn, lease_id) if lease_id else None


async def leased_names(conn: Connection, names: Iterable[str]) -> set[str]:
    """Return which of these names of nodes are of leases that the ledger still has."""
    return {row["node_name"] for row in await conn.fetch(LEASED_NAMES, list(names))}


async def save_lease(conn: Connection, lease: Lease) -> None:
    """The caller has the lock of its pool."""
    await conn.execute(REMOVE_LEASED, lease.lease_id)
    await conn.execute(SAVE_LEASE, *LEASE.values(lease))
    if lease.devices:
        await conn.execute(ADD_LEASED, lease.pool, lease.machine, list(lease.devices), lease.lease_id)


async def save_pool(conn: Connection, pool: Pool) -> None:
    await conn.execute(SAVE_POOL, *POOL.values(pool))


async def add_cordon(conn: Connection, cordon: Cordon) -> None:
    await conn.execute(ADD_CORDON, *CORDON.values(cordon))


async def remove_cordon(conn: Connection, pool: str, machine: str) -> None:
    """Its failures until now count no more: the machine was repaired, or was never at fault."""
    await conn.execute(REMOVE_CORDON, pool, machine)
    await conn.execute(MARK_PAST, pool, machine)
    await conn.execute(MARK_PAST_UNDER_LEASES, pool, machine)


async def add_failure(conn: Connection, failure: Failure) -> None:
    if failure.lease_id:
        await conn.execute(ADD_LEASE_FAILURE, *LEASE_FAILURE.values(failure))
    else:
        await conn.execute(ADD_FAILURE, *FAILURE.values(failure))


async def list_failures_of_machine(
    conn: Connection, pool: str, machine: str, *, since: datetime
) -> list[Failure]:
    """Return those since it was last uncordoned, under attempts and leases, the oldest first."""
    under_attempts = await conn.fetch(FAILURES_OF_MACHINE, pool, machine, since)
    under_leases = await conn.fetch(LEASE_FAILURES_OF_MACHINE, pool, machine, since)
    failures = [*(read(Failure, row) for row in under_attempts), *map(_of_lease, under_leases)]
    return sorted(failures, key=lambda failure: failure.failed_at)


async def list_newest_failures(conn: Connection, pool: str, *, limit: int) -> list[Failure]:
    """Return failures of a pool's machines, those before an uncordon too: so many under attempts, then so many under
    leases, the newest of each first."""
    under_attempts = await conn.fetch(NEWEST_FAILURES, pool, limit)
    under_leases = await conn.fetch(NEWEST_LEASE_FAILURES, pool, None, limit)
    return [*(read(Failure, row) for row in under_attempts), *map(_of_lease, under_leases)]


async def find_last_failure_of_holder(conn: Connection, pool: str, holder: str) -> Failure | None:
    """Return the newest failure of a machine of the pool under a lease of the service."""
    row = await conn.fetchrow(NEWEST_LEASE_FAILURES, pool, holder, 1)
    return _of_lease(row) if row else None


def _of_lease(row: Record) -> Failure:
    return read(Failure, row, job_id="", number=0)


async def list_failures_of_attempt(conn: Connection, job_id: str, number: int) -> list[Failure]:
    return [read(Failure, row) for row in await conn.fetch(FAILURES_OF_ATTEMPT, job_id, number)]


async def lock_attempt(conn: Connection, job_id: str, number: int) -> Attempt | None:
    row = await conn.fetchrow(LOCK_ATTEMPT, job_id, number)
    if row is None:
        return None
    nodes = tuple(read(Node, node) for node in await conn.fetch(SELECT_NODES, job_id, number))
    return read(Attempt, row, nodes=nodes)


async def lock_attempts_beside(conn: Connection, target: str) -> tuple[Attempt | None, list[Attempt]]:
    """Lock the attempt of the target, as `lock_attempt_of`, and those with devices of the same machines, all in one
    order."""
    own = await _find_attempt_of(conn, target)
    if own is None:
        return None, []
    others = [(row["job_id"], row["number"]) for row in await conn.fetch(FIND_BESIDE, *own)]
    locked: dict[tuple[str, int], Attempt | None] = {}
    for key in sorted({own, *others}):
        locked[key] = await lock_attempt(conn, *key)
    beside = [attempt for key, attempt in locked.items() if key != own and attempt is not None]
    return locked[own], beside


async def lock_attempt_of(conn: Connection, target: str) -> Attempt | None:
    """Lock the attempt of a node id, or of `job:<job id>`: the job's newest attempt."""
    key = await _find_attempt_of(conn, target)
    return await lock_attempt(conn, *key) if key else None


async def _find_attempt_of(conn: Connection, target: str) -> tuple[str, int] | None:
    job_id = target.removeprefix("job:")
    query = FIND_ATTEMPT_OF_NODE if job_id == target else FIND_NEWEST
    row = await conn.fetchrow(query, job_id)
    return (row["job_id"], row["number"]) if row else None


async def lock_attempt_named(conn: Connection, name: str) -> Attempt | None:
    row = await conn.fetchrow(FIND_BY_NAME, name)
    return await lock_attempt(conn, row["job_id"], row["number"]) if row else None


async def states_of(conn: Connection, names: Iterable[str]) -> dict[str, AttemptState | None]:
    """Return the state of the attempt with each name; None where there is no such attempt."""
    states = {row["name"]: AttemptState(row["state"]) for row in await conn.fetch(STATES, list(names))}
    return {name: states.get(name) for name in names}


async def save_attempt(conn: Connection, before: Attempt | None, after: Attempt) -> None:
    """Write what changed, unless someone else wrote since `before` was read (StaleWrite, retryable)."""
    if before is None:
        await _insert(conn, after)
    elif after != before:
        await _update(conn, before, after)


async def _insert(conn: Connection, attempt: Attempt) -> None:
    await conn.execute(INSERT_ATTEMPT, *ATTEMPT.values(attempt), *PROGRESS.values(attempt), attempt.name)
    for node in attempt.nodes:
        await conn.execute(INSERT_NODE, *NODE.values(node), attempt.job_id, attempt.number, attempt.pool)
        await conn.execute(ADD_LEASES, attempt.pool, node.machine, list(node.devices), node.node_id)


async def _update(conn: Connection, before: Attempt, after: Attempt) -> None:
    key = (after.job_id, after.number, before.revision)
    if await conn.fetchval(UPDATE_ATTEMPT, *key, after.state, *PROGRESS.values(after)) is None:
        raise StaleWrite(f"attempt {after.name} changed since revision {before.revision}")
    for node in set(after.nodes) - set(before.nodes):
        await conn.execute(UPDATE_NODE, *NODE.values(node))
        if node.released_at is not None:
            await conn.execute(REMOVE_LEASES, node.node_id)
