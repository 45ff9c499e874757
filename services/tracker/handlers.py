"""Steps into the time series, node-seconds into the ledger."""

from schemas.base import PriceClass
from schemas.cost import CostAccrued
from schemas.node import NodesProvisioned, NodesReleased
from schemas.training import StepsRecorded
from services.tracker import decide, store
from shared.messaging.unit import Unit
from shared.service import Service


async def steps_recorded(event: StepsRecorded, unit: Unit) -> None:
    await store.save_steps(unit.conn, event.job_id, event.tenant, event.attempt, event.steps)


async def nodes_provisioned(event: NodesProvisioned, unit: Unit) -> None:
    await store.save_held(
        unit.conn,
        event.job_id,
        event.attempt,
        event.tenant,
        pool=event.pool,
        price_class=event.price_class,
        began_at=min((node.allocated_at for node in event.nodes), default=unit.now),
    )


async def nodes_released(event: NodesReleased, unit: Unit) -> None:
    if not event.nodes:
        return  # an attempt that held nothing costs nothing
    seconds = decide.node_seconds(event.nodes, until=unit.now)
    cost = decide.cost_of(event.nodes, until=unit.now)
    price_class = await store.find_price_class(unit.conn, event.job_id, event.attempt)
    total = await store.save_cost(unit.conn, event, node_seconds=seconds, cost=cost, until=unit.now)
    await unit.emit(
        CostAccrued(
            job_id=event.job_id,
            tenant=event.tenant,
            attempt=event.attempt,
            node_seconds=seconds,
            cost=cost,
            total=total,
            price_class=price_class or PriceClass.ON_DEMAND,
            until=unit.now,
        )
    )


def register(service: Service) -> None:
    service.on(StepsRecorded, steps_recorded)
    service.on(NodesProvisioned, nodes_provisioned)
    service.on(NodesReleased, nodes_released)
