"""Steps into the time series, node-seconds into the costs."""

from datetime import timedelta
from typing import get_args

from schemas.node import NodesProvisioned, NodesReleased
from schemas.training import StepsRecorded
from services.tracker import decide, gauges, store
from services.tracker.decide import AttemptEnded
from shared.errors import Rejected
from shared.messaging.unit import Unit
from shared.service import Service

MEASURE_EVERY = timedelta(seconds=5)


async def steps_recorded(event: StepsRecorded, unit: Unit) -> None:
    """Save a runner's claim: it counts for an attempt that has nodes, and for the tenant that the attempt is of."""
    tenant = await store.tenant_of(unit.conn, event.job_id, event.attempt)
    if event.tenant != tenant:
        raise Rejected(f"{event.job_id} is of tenant {tenant}, found {event.tenant}")
    await store.save_steps(unit.conn, event.job_id, event.tenant, event.attempt, event.steps)


async def nodes_provisioned(event: NodesProvisioned, unit: Unit) -> None:
    await store.save_held(
        unit.conn,
        event.job_id,
        event.attempt,
        event.tenant,
        pool=event.pool,
        capacity_type=event.capacity_type,
        began_at=min((node.allocated_at for node in event.nodes), default=unit.now),
    )
    await unit.release(store.name_of(event.job_id, event.attempt))


async def nodes_released(event: NodesReleased, unit: Unit) -> None:
    if not event.nodes:
        return  # an attempt that held nothing costs nothing
    seconds = decide.node_seconds(event.nodes, until=unit.now)
    cost = decide.cost_of(event.nodes, until=unit.now)
    await store.save_cost(unit.conn, event, node_seconds=seconds, cost=cost, until=unit.now)
    await _emit_charge(event.job_id, event.attempt, unit)


async def attempt_ended(event: AttemptEnded, unit: Unit) -> None:
    """Save how an attempt ended by the first such fact: a job may be cancelled long after its last attempt."""
    if not event.attempt:
        return  # none has begun
    ending = decide.ending_of(event)
    if await store.save_ending(unit.conn, event.job_id, event.attempt, event.tenant, ending):
        await _emit_charge(event.job_id, event.attempt, unit)


async def _emit_charge(job_id: str, attempt: int, unit: Unit) -> None:
    """Emit the cost once the nodes are released and the ending is known, in either order."""
    if (fact := await store.find_charge(unit.conn, job_id, attempt)) is not None:
        await unit.emit(fact)


async def measure_running(unit: Unit) -> None:
    """Show the newest steps as the rows have them, so that every process of the tracker reports the same."""
    gauges.show(await store.list_newest_steps(unit.conn))


def register(service: Service) -> None:
    service.on(StepsRecorded, steps_recorded)
    service.on(NodesProvisioned, nodes_provisioned)
    service.on(NodesReleased, nodes_released)
    for fact in get_args(AttemptEnded):
        service.on(fact, attempt_ended)

    async def measure() -> None:
        async with service.unit() as unit:
            await measure_running(unit)

    service.every(MEASURE_EVERY, measure)
