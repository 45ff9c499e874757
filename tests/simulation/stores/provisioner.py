"""`services/provisioner/store.py` in memory."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from services.provisioner.machines import Cordon, Failure
from services.provisioner.model import Attempt, AttemptState, Lease, LeaseState, Pool
from shared.errors import StaleWrite
from tests.simulation.fast import replace
from tests.simulation.tables import Tables


async def lock_pool(conn: Tables, name: str) -> Pool | None:
    conn.lock_row("pool", name)
    pool = conn.get("pool", name)
    return _with_leases(conn, pool) if pool else None


async def lock_pools(conn: Tables) -> dict[str, Pool]:
    for name in sorted(pool.name for pool in conn.rows("pool")):
        conn.lock_row("pool", name)
    return {pool.name: _with_leases(conn, pool) for pool in conn.rows("pool")}


async def counted_pools(conn: Tables) -> list[str]:
    return sorted(pool.name for pool in conn.rows("pool") if pool.is_counted and not pool.is_removed)


def _with_leases(conn: Tables, pool: Pool) -> Pool:
    cordoned = sorted(cordon.machine for cordon in conn.rows("cordon") if cordon.pool == pool.name)
    open_leases = [
        lease
        for lease in conn.rows("service_lease")
        if lease.pool == pool.name and lease.state is not LeaseState.ENDED
    ]
    leases = tuple(sorted(open_leases, key=lambda lease: (lease.asked_at, lease.lease_id)))
    return replace(pool, leased=leased_in(conn, pool.name), leases=leases, cordoned=tuple(cordoned))


async def find_lease(conn: Tables, lease_id: str) -> Lease | None:
    return conn.get("service_lease", lease_id)  # type: ignore[no-any-return]


async def find_lease_of_node(conn: Tables, name: str) -> Lease | None:
    of_node = (lease for lease in conn.rows("service_lease") if lease.node and lease.node.name == name)
    return next(of_node, None)


async def leased_names(conn: Tables, names: Iterable[str]) -> set[str]:
    leases = [lease for lease in conn.rows("service_lease") if lease.node is not None]
    return {each.node.name for each in leases if each.state is not LeaseState.ENDED} & {*names}


async def save_lease(conn: Tables, lease: Lease) -> None:
    conn.put("service_lease", lease.lease_id, lease)


async def save_pool(conn: Tables, pool: Pool) -> None:
    conn.put("pool", pool.name, pool)


async def add_cordon(conn: Tables, cordon: Cordon) -> None:
    conn.put("cordon", (cordon.pool, cordon.machine), cordon)


async def remove_cordon(conn: Tables, pool: str, machine: str) -> None:
    conn.delete("cordon", (pool, machine))
    for failure in conn.rows("machine_failure"):
        if (failure.pool, failure.machine) == (pool, machine):
            conn.put("machine_failure", failure.node_id, replace(failure, is_past=True))


async def add_failure(conn: Tables, failure: Failure) -> None:
    known = conn.get("machine_failure", failure.node_id)
    if known is None:
        conn.put("machine_failure", failure.node_id, failure)
    elif failure.has_lost_machine and not known.has_lost_machine:
        later = replace(known, has_lost_machine=True, message=failure.message)
        conn.put("machine_failure", failure.node_id, later)


async def list_failures_of_machine(
    conn: Tables, pool: str, machine: str, *, since: datetime
) -> list[Failure]:
    failures = [
        each
        for each in conn.rows("machine_failure")
        if (each.pool, each.machine) == (pool, machine) and each.failed_at >= since and not each.is_past
    ]
    return sorted(failures, key=lambda each: (each.failed_at, each.node_id))


async def list_newest_failures(conn: Tables, pool: str, *, limit: int) -> list[Failure]:
    by_node = sorted(
        (each for each in conn.rows("machine_failure") if each.pool == pool), key=lambda each: each.node_id
    )
    newest = sorted(by_node, key=lambda each: each.failed_at, reverse=True)
    under_attempts = [each for each in newest if not each.lease_id][:limit]
    return under_attempts + [each for each in newest if each.lease_id][:limit]


async def find_last_failure_of_holder(conn: Tables, pool: str, holder: str) -> Failure | None:
    newest = await list_newest_failures(conn, pool, limit=len(conn.rows("machine_failure")))
    return next((each for each in newest if each.holder == holder), None)


async def list_failures_of_attempt(conn: Tables, job_id: str, number: int) -> list[Failure]:
    failures = [
        each for each in conn.rows("machine_failure") if (each.job_id, each.number) == (job_id, number)
    ]
    return sorted(failures, key=lambda each: each.node_id)


async def lock_attempt(conn: Tables, job_id: str, number: int) -> Attempt | None:
    conn.lock_row("attempt", (job_id, number))
    return conn.get("attempt", (job_id, number))  # type: ignore[no-any-return]


async def lock_attempts_beside(conn: Tables, target: str) -> tuple[Attempt | None, list[Attempt]]:
    own = await lock_attempt_of(conn, target)
    if own is None:
        return None, []
    machines = {node.machine for node in own.nodes}
    beside = [
        attempt
        for attempt in conn.rows("attempt")
        if attempt.pool == own.pool
        and (attempt.job_id, attempt.number) != (own.job_id, own.number)
        and any(node.released_at is None and node.machine in machines for node in attempt.nodes)
    ]
    for attempt in beside:
        conn.lock_row("attempt", (attempt.job_id, attempt.number))
    return own, beside


async def lock_attempt_of(conn: Tables, target: str) -> Attempt | None:
    job_id = target.removeprefix("job:")
    if job_id != target:
        attempts = [attempt for attempt in conn.rows("attempt") if attempt.job_id == job_id]
        newest = max(attempts, key=lambda attempt: attempt.number, default=None)
        return await lock_attempt(conn, job_id, newest.number) if newest else None
    for attempt in conn.rows("attempt"):
        if any(node.node_id == target for node in attempt.nodes):
            return await lock_attempt(conn, attempt.job_id, attempt.number)
    return None


async def lock_attempt_named(conn: Tables, name: str) -> Attempt | None:
    key = conn.get("name", name)
    return await lock_attempt(conn, *key) if key else None


async def states_of(conn: Tables, names: Iterable[str]) -> dict[str, AttemptState | None]:
    states: dict[str, AttemptState | None] = {}
    for name in names:
        key = conn.get("name", name)
        attempt = conn.get("attempt", key) if key else None
        states[name] = attempt.state if attempt else None
    return states


async def save_attempt(conn: Tables, before: Attempt | None, after: Attempt) -> None:
    key = (after.job_id, after.number)
    if before is not None and after == before:
        return
    known = conn.get("attempt", key)
    if before is None:
        assert known is None, f"attempt {after.name} is inserted twice"
        conn.put("name", after.name, key)
        conn.put("attempt", key, after)
    elif known.revision != before.revision:
        raise StaleWrite(f"attempt {after.name} changed since revision {before.revision}")
    else:
        conn.put("attempt", key, replace(after, revision=after.revision + 1))
    if after.held:
        held = [node for node in after.nodes if node.released_at is None]
        conn.put("holding", key, (after.pool, tuple((node.machine, node.devices) for node in held)))
    else:
        conn.delete("holding", key)


def leased_in(conn: Tables, pool: str) -> dict[int, frozenset[int]]:
    leased = defaultdict[int, set[int]](set)
    for machine, devices in leases_in(conn, pool):
        leased[machine].update(devices)
    return {machine: frozenset(devices) for machine, devices in leased.items()}


def leases_in(conn: Tables, pool: str) -> list[tuple[int, tuple[int, ...]]]:
    """Machine and devices of each node and of each lease."""
    nodes = [lease for name, leases in conn.rows("holding") if name == pool for lease in leases]
    held = [lease for lease in conn.rows("service_lease") if lease.pool == pool and lease.devices]
    return nodes + [(lease.machine, lease.devices) for lease in held]
