"""SQL of the tracker; the only file that knows column names."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal

from pydantic_core import to_jsonable_python

from schemas.base import CapacityType
from schemas.cost import CostAccrued
from schemas.job import JobScheduled
from schemas.node import NodesReleased, key_of_first
from schemas.training import StepMetrics
from services.tracker.decide.alerts import Plan, Watch
from services.tracker.decide.budget import Burn, Month
from services.tracker.decide.cost import Ending
from services.tracker.decide.looks import Spending
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
FIND_HOLDER = """
    SELECT tenant, public_key FROM cost
     WHERE job_id = $1 AND attempt = $2 AND (pool <> '' OR until IS NOT NULL)"""
# An attempt's row is made by whichever of its three facts comes first.
SAVE_HELD = """
    INSERT INTO cost (job_id, attempt, tenant, pool, capacity_type, began_at, public_key)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (job_id, attempt) DO UPDATE SET pool = $4, capacity_type = $5, began_at = $6, public_key = $7"""
SAVE_COST = """
    INSERT INTO cost (job_id, attempt, tenant, began_at, node_seconds, cost, until, device_seconds, public_key)
    VALUES ($1, $2, $3, $7, $4, $5, $6, $8, $9)
    ON CONFLICT (job_id, attempt) DO UPDATE SET node_seconds = $4, cost = $5, until = $6, device_seconds = $8"""
SAVE_ENDING = """
    INSERT INTO cost (job_id, attempt, tenant, is_ended, failure_class, is_charged)
    VALUES ($1, $2, $3, true, $4, $5)
    ON CONFLICT (job_id, attempt) DO UPDATE SET is_ended = true, failure_class = $4, is_charged = $5
     WHERE NOT cost.is_ended RETURNING true"""
FIND_CHARGE = """
    SELECT job_id, tenant, attempt, node_seconds, device_seconds, pool, cost, capacity_type, until, failure_class,
           CASE WHEN is_charged THEN cost ELSE 0 END AS charged
      FROM cost WHERE job_id = $1 AND attempt = $2 AND is_ended AND until IS NOT NULL"""
# Only what is reported: what is released and has not ended yet may turn out to be free.
TOTALS = """
    SELECT sum(cost) AS total, coalesce(sum(cost) FILTER (WHERE is_charged), 0) AS charged_total
      FROM cost WHERE job_id = $1 AND is_ended AND until IS NOT NULL"""

WATCH = Columns("job_id, attempt, tenant, plan, signals, is_over")
LOCK_WATCH = f"SELECT {WATCH.selected} FROM watch WHERE job_id = $1 AND attempt = $2 FOR UPDATE"
ADD_WATCH = "INSERT INTO watch (job_id, attempt, tenant) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
SAVE_WATCH = """
    UPDATE watch SET signals = $3, is_over = $4, look_at = $5, changed_at = now()
     WHERE job_id = $1 AND attempt = $2"""
SAVE_PLAN = """
    INSERT INTO watch (job_id, attempt, tenant, plan, max_cost, grace_seconds) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (job_id, attempt) DO UPDATE SET plan = $4, max_cost = $5, grace_seconds = $6"""
SAVE_PRICE = """
    INSERT INTO watch (job_id, attempt, tenant, price_per_hour, began_at) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (job_id, attempt) DO UPDATE SET price_per_hour = $4, began_at = $5"""
IS_LOOK_DUE = "SELECT EXISTS (SELECT FROM watch WHERE NOT is_over AND look_at <= $1)"
# Two processes never look at the same attempt: the other one's are passed over.
LOCK_DUE = f"""
    SELECT {WATCH.selected} FROM watch WHERE NOT is_over AND look_at <= $1
     ORDER BY job_id, attempt LIMIT $2 FOR UPDATE SKIP LOCKED"""
SPENDING = """
    SELECT price_per_hour, began_at,
           (SELECT coalesce(sum(cost), 0) FROM cost WHERE job_id = $1 AND attempt <> $2) AS before
      FROM watch WHERE job_id = $1 AND attempt = $2 AND began_at IS NOT NULL"""
# Those that hold nodes, so that one that is stopping costs until it has ended. What is not known to be free counts,
# and so does what has ended for a reason that is not heard yet.
BURNS = """
    SELECT watch.job_id, watch.tenant, watch.attempt, price_per_hour, watch.began_at, max_cost, grace_seconds,
           is_over OR is_budget_reached AS is_ending,
           (SELECT coalesce(sum(cost), 0) FROM cost WHERE cost.job_id = watch.job_id
               AND cost.attempt <> watch.attempt AND (is_charged OR NOT is_ended)) AS charged
      FROM cost AS running JOIN watch USING (job_id, attempt)
     WHERE NOT running.is_ended AND running.until IS NULL AND running.pool <> '' AND watch.began_at IS NOT NULL
       AND (max_cost IS NOT NULL OR watch.tenant IN (SELECT tenant FROM spending_limit))"""
MONTHS = """
    SELECT tenant, cost_per_month AS limit,
           (SELECT coalesce(sum(cost), 0) FROM cost WHERE cost.tenant = spending_limit.tenant
               AND cost.until >= $1 AND (is_charged OR NOT is_ended)) AS charged
      FROM spending_limit WHERE tenant = ANY($2)"""
SAVE_SPENDING_LIMIT = """
    INSERT INTO spending_limit (tenant, cost_per_month) VALUES ($1, $2)
    ON CONFLICT (tenant) DO UPDATE SET cost_per_month = $2"""
FORGET_SPENDING_LIMIT = "DELETE FROM spending_limit WHERE tenant = $1"
MARK_BUDGET_REACHED = """
    UPDATE watch SET is_budget_reached = true
     WHERE job_id = $1 AND attempt = $2 AND NOT is_over AND NOT is_budget_reached RETURNING true"""
PRUNE_WATCHES = """
    DELETE FROM watch WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM watch WHERE is_over AND changed_at < now() - $1::interval LIMIT $2))"""


def name_of(job_id: str, attempt: int) -> str:
    """Return the name that the steps of an attempt wait for until its nodes were provisioned."""
    return f"attempt:{job_id}/{attempt}"


async def find_holder(conn: Connection, job_id: str, attempt: int) -> tuple[str, str | None]:
    """Return whose attempt it is, and the public key of its node 0, where that has one.

    Raises ParentUnknown until its nodes are known.
    """
    row = await conn.fetchrow(FIND_HOLDER, job_id, attempt)
    if row is None:
        raise ParentUnknown(name_of(job_id, attempt))
    return row["tenant"], row["public_key"]


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
    public_key: str | None,
) -> None:
    """Note that an attempt holds nodes from now on, and the key of the one that reports its steps."""
    await conn.execute(SAVE_HELD, job_id, attempt, tenant, pool, capacity_type, began_at, public_key)


async def save_cost(
    conn: Connection,
    released: NodesReleased,
    *,
    node_seconds: float,
    device_seconds: float,
    cost: Decimal,
    until: datetime,
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
        device_seconds,
        key_of_first(released.nodes),
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


async def lock_watch(conn: Connection, job_id: str, attempt: int, tenant: str) -> Watch:
    """Return what is known of the attempt, which no other process changes until the commit."""
    row = await conn.fetchrow(LOCK_WATCH, job_id, attempt)
    if row is None:
        await conn.execute(ADD_WATCH, job_id, attempt, tenant)
        row = await conn.fetchrow(LOCK_WATCH, job_id, attempt)
    assert row is not None, "the row was added"
    return read(Watch, row)


async def save_watch(conn: Connection, watch: Watch, *, look_at: datetime | None) -> None:
    signals = to_jsonable_python(watch.signals)
    await conn.execute(SAVE_WATCH, watch.job_id, watch.attempt, signals, watch.is_over, look_at)


async def save_plan(conn: Connection, event: JobScheduled, plan: Plan) -> None:
    """Note what the attempt is planned to do, and what its job may cost."""
    limits = event.spec.max_cost, event.grace_seconds
    await conn.execute(
        SAVE_PLAN, event.job_id, event.attempt, event.tenant, to_jsonable_python(plan), *limits
    )


async def save_price(
    conn: Connection, job_id: str, attempt: int, tenant: str, *, price_per_hour: Decimal, began_at: datetime
) -> None:
    """Note what the attempt's nodes cost together."""
    await conn.execute(SAVE_PRICE, job_id, attempt, tenant, price_per_hour, began_at)


async def is_look_due(conn: Connection, *, now: datetime) -> bool:
    return bool(await conn.fetchval(IS_LOOK_DUE, now))


async def lock_due_watches(conn: Connection, *, now: datetime, at_most: int) -> list[Watch]:
    return [read(Watch, row) for row in await conn.fetch(LOCK_DUE, now, at_most)]


async def find_spending(conn: Connection, job_id: str, attempt: int) -> Spending | None:
    """Return what the job has cost and what the attempt costs; None where its nodes are not known."""
    row = await conn.fetchrow(SPENDING, job_id, attempt)
    return None if row is None else read(Spending, row)


async def list_burns(conn: Connection) -> list[Burn]:
    """Return the attempts that hold nodes, of jobs and tenants with a budget."""
    return [read(Burn, row) for row in await conn.fetch(BURNS)]


async def list_months(conn: Connection, tenants: Iterable[str], *, since: datetime) -> list[Month]:
    """Return what these tenants were charged since then, of those that have a limit."""
    return [read(Month, row) for row in await conn.fetch(MONTHS, since, list(tenants))]


async def mark_budget_reached(conn: Connection, job_id: str, attempt: int) -> bool:
    """Note that the attempt must end; return False where that is known already, or it has ended."""
    return bool(await conn.fetchval(MARK_BUDGET_REACHED, job_id, attempt))


async def save_spending_limit(conn: Connection, tenant: str, cost_per_month: int | None) -> None:
    if cost_per_month is None:
        await conn.execute(FORGET_SPENDING_LIMIT, tenant)
    else:
        await conn.execute(SAVE_SPENDING_LIMIT, tenant, cost_per_month)
