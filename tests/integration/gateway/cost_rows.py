"""Costs of a tenant as the tracker emits them: charged and free attempts over the days of this month."""

from datetime import timedelta

from schemas.base import CapacityType, FailureClass
from schemas.cost import CostAccrued
from services.gateway.quotas import month_start
from shared.clock import utc_now
from tests.integration.gateway.world import World
from tests.waiting import until


def accrued(
    job_id: str,
    tenant: str,
    attempt: int,
    cost: str,
    *,
    failure_class: FailureClass | None = None,
    pool: str = "a100-spot",
    day: int = 1,
) -> CostAccrued:
    is_free = failure_class is FailureClass.PREEMPTED
    return CostAccrued(
        job_id=job_id,
        tenant=tenant,
        attempt=attempt,
        node_seconds=1800,
        device_seconds=3600,
        cost=cost,
        total=cost,
        charged="0" if is_free else cost,
        charged_total="0" if is_free else cost,
        capacity_type=CapacityType.SPOT,
        until=month_start(utc_now()) + timedelta(days=day - 1, minutes=1),
        failure_class=failure_class,
        pool=pool,
    )


async def add_costs(world: World, tenant: str, job_id: str, *more: CostAccrued) -> None:
    """The job's attempt 8 was preempted, its attempt 9 charged."""
    events = (
        accrued(job_id, tenant, 8, "1.50", failure_class=FailureClass.PREEMPTED),
        accrued(job_id, tenant, 9, "3.12"),
        *more,
    )
    await world.voices.say("tracker", *events)
    query = "SELECT true FROM attempt_cost WHERE job_id = $1 AND attempt = $2"
    for each in events:
        row = (each.job_id, each.attempt)
        await until(lambda row=row: world.db.fetchval(query, *row), f"the cost of {row}")
