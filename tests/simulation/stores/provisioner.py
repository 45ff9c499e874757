"""`services/provisioner/store.py` in memory."""

from collections.abc import Iterable

from services.provisioner.model import Attempt, AttemptState, Pool
from shared.errors import StaleWrite
from tests.simulation.fast import replace
from tests.simulation.tables import Tables


async def lock_pool(conn: Tables, name: str) -> Pool | None:
    conn.lock_row("pool", name)
    pool = conn.get("pool", name)
    return replace(pool, held=held_in(conn, name)) if pool else None


async def lock_pools(conn: Tables) -> dict[str, Pool]:
    for name in sorted(pool.name for pool in conn.rows("pool")):
        conn.lock_row("pool", name)
    return {pool.name: replace(pool, held=held_in(conn, pool.name)) for pool in conn.rows("pool")}


async def save_pool(conn: Tables, pool: Pool) -> None:
    conn.put("pool", pool.name, pool)


async def lock_attempt(conn: Tables, job_id: str, number: int) -> Attempt | None:
    conn.lock_row("attempt", (job_id, number))
    return conn.get("attempt", (job_id, number))  # type: ignore[no-any-return]


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
        conn.put("holding", key, (after.pool, after.held))
    else:
        conn.delete("holding", key)


def held_in(conn: Tables, pool: str) -> int:
    return sum(held for name, held in conn.rows("holding") if name == pool)
