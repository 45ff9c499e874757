"""One side of the relay benchmarks as a process: `python -m bench.kernel.relay_side retune|faststream-outbox…`.

It says `ready` on stdout once it is connected; each line on stdin says that rows were committed.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
from faststream.kafka import KafkaBroker
from faststream.security import SASLScram512
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.annotations import OutboxMessage
from sqlalchemy import MetaData
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateIndex, CreateTable

from bench.kernel.events import Event
from bench.kernel.parts import SERVICE, TOPIC
from deploy.local.stack import Stack
from shared.messaging.kafka import kafka_producer
from shared.messaging.lease import Lease
from shared.messaging.relay import Relay
from shared.postgres.database import Database, register_json

QUEUE = "events"
PEER_TABLE = make_outbox_table(MetaData(), table_name="peer_outbox")
PEER_SETTINGS: dict[str, dict[str, Any]] = {
    # Its documentation's example, but for the sizes: tried were 1 to 128 workers and batches of 10 to 1,000.
    "faststream-outbox": {"max_workers": 32, "fetch_batch_size": 500, "terminal_flush_batch_size": 100},
    "faststream-outbox-alone": {
        "max_workers": 1,
        "fetch_batch_size": 500,
        "terminal_flush_batch_size": 100,
    },
}
FILL_OUTBOX = ("event_id", "topic", "aggregate_id", "sequence", "type", "headers", "value")
FILL_PEER = ("queue", "payload", "headers")


def environment(stack: Stack) -> dict[str, str]:
    return os.environ | {
        "BENCH_BOOTSTRAP": stack.kafka_bootstrap,
        "BENCH_PASSWORD": stack.kafka_password(SERVICE),
        "BENCH_DSN": stack.service_env(SERVICE)["TRACKER_POSTGRES_DSN"],
    }


async def fill_outbox(conn: asyncpg.Connection, backlog: list[Event]) -> None:
    await register_json(conn)
    rows = [(e.event_id, TOPIC, e.key, e.sequence, "CostAccrued", e.headers, e.value) for e in backlog]
    async with conn.transaction():
        last = await conn.fetchval("SELECT coalesce(max(id), 0) FROM outbox")
        await conn.copy_records_to_table("outbox", records=rows, columns=FILL_OUTBOX)
        await conn.execute("INSERT INTO unpublished SELECT id FROM outbox WHERE id > $1", last)


async def fill_peer(conn: asyncpg.Connection, backlog: list[Event]) -> None:
    await register_json(conn)
    rows = [
        (QUEUE, e.value, e.headers | {"ce_sequence": str(e.sequence), "content-type": "application/json"})
        for e in backlog
    ]
    await conn.copy_records_to_table("peer_outbox", records=rows, columns=FILL_PEER)


async def create_peer_table(conn: asyncpg.Connection) -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    await conn.execute(str(CreateTable(PEER_TABLE).compile(dialect=dialect)))
    for index in PEER_TABLE.indexes:
        await conn.execute(str(CreateIndex(index).compile(dialect=dialect)))


async def relay_with_retune() -> None:
    database = Database(os.environ["BENCH_DSN"], application="bench")
    await database.open()
    relay = a_relay(database)
    running = asyncio.create_task(relay.run())
    await _say_ready()
    async for _ in _lines():
        relay.wake_event.set()
    await running


def a_relay(database: Database) -> Relay:
    """As a service has it."""
    return Relay(
        database,
        lambda: kafka_producer(
            os.environ["BENCH_BOOTSTRAP"], SERVICE, os.environ["BENCH_PASSWORD"], client_id="bench"
        ),
        Lease(database, "relay", owner="bench-0", ttl=timedelta(seconds=15)),
        service=SERVICE,
        renew_seconds=5.0,
    )


async def relay_with_faststream(settings: dict[str, Any]) -> None:
    host = os.environ["BENCH_DSN"].replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(host, pool_size=settings["max_workers"] + 5)
    kafka = KafkaBroker(
        os.environ["BENCH_BOOTSTRAP"],
        security=SASLScram512(SERVICE, os.environ["BENCH_PASSWORD"]),
        acks="all",
        enable_idempotence=True,
        linger_ms=2,
        logger=None,
    )
    outbox = OutboxBroker(engine, outbox_table=PEER_TABLE, logger=None)

    @outbox.subscriber(
        QUEUE, min_fetch_interval=0.001, max_fetch_interval=0.1, decoder=_undecoded, **settings
    )
    async def relay(message: OutboxMessage) -> None:
        headers = dict(message.headers)
        await kafka.publish(message.body, TOPIC, key=headers["ce_subject"].encode(), headers=headers)

    async with AsyncExitStack() as closing:
        await closing.enter_async_context(kafka)
        await closing.enter_async_context(outbox)
        await outbox.start()
        await _say_ready()
        async for _ in _lines():
            pass


async def _undecoded(message: Any) -> Any:
    return message.body


async def _say_ready() -> None:
    print("ready", flush=True)


async def _lines() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield line


if __name__ == "__main__":
    side = sys.argv[1]
    asyncio.run(relay_with_retune() if side == "retune" else relay_with_faststream(PEER_SETTINGS[side]))
