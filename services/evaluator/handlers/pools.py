"""What the machines of pools have, by which a model gets one device or several."""

from schemas.node import PoolCapacityChanged
from services.evaluator import store
from services.evaluator.model import Pool
from shared.messaging.unit import Unit


async def pool_changed(fact: PoolCapacityChanged, unit: Unit) -> None:
    pool = Pool(fact.pool, fact.devices_per_node, fact.device_memory_bytes)
    await store.save_pool(unit.conn, pool)
