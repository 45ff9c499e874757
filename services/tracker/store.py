"""SQL of the tracker; the only file that knows column names."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from schemas.base import PriceClass
from schemas.node import NodesReleased
from schemas.training import StepMetrics
from shared.postgres.database import Connection

# A resumed run records some steps again: per step the highest attempt wins.
SAVE_STEP = """
    INSERT INTO step (job_id, step, attempt, tenant, time, loss, learning_rate, grad_norm, num_tokens,
                      tokens_per_second, memory_bytes, epoch, mfu)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
    ON CONFLICT (job_id, step) DO UPDATE SET attempt = $3, time = $5, loss = $6, learning_rate = $7,
        grad_norm = $8, num_tokens = $9, tokens_per_second = $10, memory_bytes = $11, epoch = $12, mfu = $13
     WHERE step.attempt <= $3"""
SAVE_HELD = """
    INSERT INTO cost (job_id, attempt, tenant, pool, price_class, began_at) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (job_id, attempt) DO NOTHING"""
SAVE_COST = """
    INSERT INTO cost (job_id, attempt, tenant, began_at, node_seconds, cost, until)
    VALUES ($1, $2, $3, $7, $4, $5, $6)
    ON CONFLICT (job_id, attempt) DO UPDATE SET node_seconds = $4, cost = $5, until = $6"""
TOTAL_COST = "SELECT coalesce(sum(cost), 0) FROM cost WHERE job_id = $1"
FIND_PRICE_CLASS = "SELECT price_class FROM cost WHERE job_id = $1 AND attempt = $2"


async def save_steps(
    conn: Connection, job_id: str, tenant: str, attempt: int, steps: Sequence[StepMetrics]
) -> None:
    await conn.executemany(SAVE_STEP, [_step_row(job_id, tenant, attempt, step) for step in steps])


def _step_row(job_id: str, tenant: str, attempt: int, step: StepMetrics) -> tuple[Any, ...]:
    return (
        job_id,
        step.step,
        attempt,
        tenant,
        step.time,
        step.loss,
        step.learning_rate,
        step.grad_norm,
        step.num_tokens,
        step.tokens_per_second,
        step.memory_bytes,
        step.epoch,
        step.mfu,
    )


async def save_held(
    conn: Connection,
    job_id: str,
    attempt: int,
    tenant: str,
    *,
    pool: str,
    price_class: PriceClass,
    began_at: datetime,
) -> None:
    """Note that an attempt holds nodes from now on."""
    await conn.execute(SAVE_HELD, job_id, attempt, tenant, pool, price_class, began_at)


async def save_cost(
    conn: Connection, released: NodesReleased, *, node_seconds: float, cost: Decimal, until: datetime
) -> Decimal:
    """Record what an attempt cost; the job's total so far."""
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
    total: Decimal = await conn.fetchval(TOTAL_COST, released.job_id)
    return total


async def find_price_class(conn: Connection, job_id: str, attempt: int) -> PriceClass | None:
    found = await conn.fetchval(FIND_PRICE_CLASS, job_id, attempt)
    return None if found is None else PriceClass(found)
