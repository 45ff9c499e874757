"""SQL of the tracker; the only file that knows column names."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from schemas.base import CapacityType
from schemas.cost import CostAccrued
from schemas.node import NodesReleased
from schemas.training import StepMetrics
from services.tracker.decide import Ending
from services.tracker.gauges import RunningStep
from shared.errors import ParentUnknown
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read

# A resumed run records some steps again: per step the highest attempt wins.
STEP = Columns(", ".join(StepMetrics.model_fields))
SAVE_STEP = f"""
    INSERT INTO step (job_id, tenant, attempt, {STEP.names}) VALUES ($1, $2, $3, {STEP.parameters(4)})
    ON CONFLICT (job_id, step) DO UPDATE SET attempt = $3, {STEP.excluded}
     WHERE step.attempt <= $3"""
# Of an attempt that continued from a bundle, steps of the one before may be ahead.
NEWEST_STEPS = f"""
    SELECT running.tenant, running.job_id, newest.*
      FROM cost AS running CROSS JOIN LATERAL (
           SELECT {STEP.selected} FROM step WHERE job_id = running.job_id AND attempt = running.attempt
            ORDER BY step.step DESC LIMIT 1) AS newest
     WHERE NOT running.is_ended AND running.until IS NULL AND running.pool <> ''"""
PRUNE_STEPS = """
    DELETE FROM step WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM step WHERE time < now() - $1::interval LIMIT $2))"""
TENANT_OF = "SELECT tenant FROM cost WHERE job_id = $1 AND attempt = $2"
# An attempt's row is made by whichever of its three facts comes first.
SAVE_HELD = """
    INSERT INTO cost (job_id, attempt, tenant, pool, capacity_type, began_at) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (job_id, attempt) DO UPDATE SET pool = $4, capacity_type = $5, began_at = $6"""
SAVE_COST = """
    INSERT INTO cost (job_id, attempt, tenant, began_at, node_seconds, cost, until)
    VALUES ($1, $2, $3, $7, $4, $5, $6)
    ON CONFLICT (job_id, attempt) DO UPDATE SET node_seconds = $4, cost = $5, until = $6"""
SAVE_ENDING = """
    INSERT INTO cost (job_id, attempt, tenant, is_ended, failure_class, is_charged)
    VALUES ($1, $2, $3, true, $4, $5)
    ON CONFLICT (job_id, attempt) DO UPDATE SET is_ended = true, failure_class = $4, is_charged = $5
     WHERE NOT cost.is_ended RETURNING true"""
FIND_CHARGE = """
    SELECT job_id, tenant, attempt, node_seconds, cost, capacity_type, until, failure_class,
           CASE WHEN is_charged THEN cost ELSE 0 END AS charged
      FROM cost WHERE job_id = $1 AND attempt = $2 AND is_ended AND until IS NOT NULL"""
# Only what is reported: what is released and has not ended yet may turn out to be free.
TOTALS = """
    SELECT sum(cost) AS total, coalesce(sum(cost) FILTER (WHERE is_charged), 0) AS charged_total
      FROM cost WHERE job_id = $1 AND is_ended AND until IS NOT NULL"""


def name_of(job_id: str, attempt: int) -> str:
    """Return the name that the steps of an attempt wait for until its nodes were provisioned."""
    return f"attempt:{job_id}/{attempt}"


async def tenant_of(conn: Connection, job_id: str, attempt: int) -> str:
    """Return whose attempt it is. Raises ParentUnknown where nobody provisioned it."""
    tenant: str | None = await conn.fetchval(TENANT_OF, job_id, attempt)
    if tenant is None:
        raise ParentUnknown(name_of(job_id, attempt))
    return tenant


async def save_steps(
    conn: Connection, job_id: str, tenant: str, attempt: int, steps: Sequence[StepMetrics]
) -> None:
    await conn.executemany(SAVE_STEP, [(job_id, tenant, attempt, *STEP.values(step)) for step in steps])


async def list_newest_steps(conn: Connection) -> list[RunningStep]:
    """Return the newest step of each attempt that holds nodes and has recorded one."""
    return [
        RunningStep(row["tenant"], row["job_id"], read(StepMetrics, row))
        for row in await conn.fetch(NEWEST_STEPS)
    ]


async def save_held(
    conn: Connection,
    job_id: str,
    attempt: int,
    tenant: str,
    *,
    pool: str,
    capacity_type: CapacityType,
    began_at: datetime,
) -> None:
    """Note that an attempt holds nodes from now on."""
    await conn.execute(SAVE_HELD, job_id, attempt, tenant, pool, capacity_type, began_at)


async def save_cost(
    conn: Connection, released: NodesReleased, *, node_seconds: float, cost: Decimal, until: datetime
) -> None:
    """Record what an attempt cost, whoever pays it."""
    await conn.execute(
        SAVE_COST,
        released.job_id,
        released.attempt,
        released.tenant,
        node_seconds,
        cost,
        until,
        min((node.allocated_at for node in released.nodes), default=until),
    )


async def save_ending(conn: Connection, job_id: str, attempt: int, tenant: str, ending: Ending) -> bool:
    """Record how an attempt ended; return False where that is known already."""
    return bool(
        await conn.fetchval(SAVE_ENDING, job_id, attempt, tenant, ending.failure_class, ending.is_charged)
    )


async def find_charge(conn: Connection, job_id: str, attempt: int) -> CostAccrued | None:
    """Return what the attempt cost, with the job's totals; None until it has ended and given its nodes back."""
    row = await conn.fetchrow(FIND_CHARGE, job_id, attempt)
    if row is None:
        return None
    totals = await conn.fetchrow(TOTALS, job_id)
    assert totals is not None, "an aggregate has one row"
    return read(CostAccrued, row, **totals)
