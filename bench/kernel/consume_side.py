"""One side of the consumer benchmark as a process: `python -m bench.kernel.consume_side retune|faststream-…`."""

import asyncio
import os
import signal
import sys

import asyncpg
from faststream.kafka import KafkaBroker
from faststream.kafka.annotations import KafkaMessage
from faststream.middlewares import AckPolicy
from faststream.security import SASLScram512
from pydantic_settings import SettingsConfigDict

from bench.kernel.consumer import TOPIC
from schemas.node import NodesReleased
from shared.messaging.unit import Unit
from shared.service import Service
from shared.settings import ServiceSettings
from tests.handlers import handle_the_rest

INSERT_EFFECT = "INSERT INTO effect (aggregate_id, event_id) VALUES ($1, $2)"
POLICIES = {"faststream-default": AckPolicy.ACK_FIRST, "faststream-ack": AckPolicy.REJECT_ON_ERROR}


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TRACKER_", frozen=True)


def run_retune() -> None:
    service = Service("tracker", Settings())
    service.on(NodesReleased, write_effect)
    handle_the_rest(service).run()


async def write_effect(event: NodesReleased, unit: Unit) -> None:
    assert unit.envelope is not None
    await unit.conn.execute(INSERT_EFFECT, event.key, unit.envelope.id)


async def run_faststream(side: str) -> None:
    pool = await asyncpg.create_pool(os.environ["TRACKER_POSTGRES_DSN"], min_size=1, max_size=4)
    broker = KafkaBroker(
        os.environ["BENCH_BOOTSTRAP"],
        security=SASLScram512("admin", os.environ["BENCH_PASSWORD"]),
        ack_policy=POLICIES[side],
        logger=None,
    )

    @broker.subscriber(TOPIC, group_id=f"admin-{side}", auto_offset_reset="earliest")
    async def consume(body: NodesReleased, message: KafkaMessage) -> None:
        await pool.execute(INSERT_EFFECT, body.key, message.headers["ce_id"])

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with broker:
        await broker.start()
        await stop.wait()
    await pool.close()


if __name__ == "__main__":
    if sys.argv[1] == "retune":
        run_retune()
    else:
        asyncio.run(run_faststream(sys.argv[1]))
