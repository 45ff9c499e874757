"""The service under test: each NodesReleased makes one row in `effect` and one CostAccrued, each StepsRecorded a row.

Run as a program it is the victim of kills; its environment says where to die.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from pydantic_settings import SettingsConfigDict

from schemas.base import CapacityType
from schemas.cost import CostAccrued
from schemas.node import NodesReleased
from schemas.training import StepsRecorded
from shared.errors import ParentUnknown, Refused, Rejected
from shared.messaging.consumer import Handler
from shared.messaging.unit import Unit
from shared.service import Service
from shared.settings import ServiceSettings
from tests.handlers import handle_the_rest

CREATE_EFFECT = """
    CREATE TABLE IF NOT EXISTS effect (number bigserial, aggregate_id text, event_id text, tenant text);
    CREATE TABLE IF NOT EXISTS parent (name text PRIMARY KEY)"""
HAS_PARENT = "SELECT true FROM parent WHERE name = $1"

LATER: dict[str, Callable[[str], Exception]] = {
    "orphan": lambda key: ParentUnknown(f"job:{key}", within=timedelta(seconds=30)),
    "late": lambda key: ParentUnknown(f"job:{key}", within=timedelta(0)),
    "early": lambda key: Rejected(f"{key} came before its parent"),
    "broken": lambda key: RuntimeError(f"{key} has no parent"),
    "forbidden": lambda key: Refused("forbidden", f"{key} must not be deleted"),
}
"""What goes wrong for these tenants until the parent is there."""
GATE = asyncio.Event()
"""What the tenant `slow` waits for."""


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TRACKER_", frozen=True)


async def nodes_released(event: NodesReleased, unit: Unit) -> None:
    """The tenant's name says what should happen, so that each test can ask for its own trouble."""
    assert unit.envelope is not None
    if event.tenant == "hopeless":
        raise Rejected("this tenant's messages can never succeed")
    if event.tenant in LATER and not await unit.conn.fetchval(HAS_PARENT, event.key):
        raise LATER[event.tenant](event.key)
    if event.tenant == "slow":
        await GATE.wait()
    await unit.conn.execute(
        "INSERT INTO effect (aggregate_id, event_id, tenant) VALUES ($1, $2, $3)",
        event.key,
        unit.envelope.id,
        event.tenant,
    )
    await unit.emit(
        CostAccrued(
            job_id=event.key,
            tenant=event.tenant,
            attempt=1,
            node_seconds=1.0,
            cost="0.1",
            total="0.1",
            capacity_type=CapacityType.SPOT,
            until=unit.now,
        )
    )


async def steps_recorded(event: StepsRecorded, unit: Unit) -> None:
    """From a topic whose messages have no numbers."""
    assert unit.envelope is not None
    await unit.conn.execute(
        "INSERT INTO effect (aggregate_id, event_id, tenant) VALUES ($1, $2, $3)",
        *(event.key, unit.envelope.id, event.tenant),
    )


def build(settings: Settings | None = None, *, released: Handler = nodes_released) -> Service:
    service = Service("tracker", settings or Settings())
    service.on(NodesReleased, released)
    service.on(StepsRecorded, steps_recorded)
    service.on_start(lambda: _create_effect(service))
    return handle_the_rest(service)


async def _create_effect(service: Service) -> None:
    await service.database.execute(CREATE_EFFECT)


if __name__ == "__main__":
    build().run()
