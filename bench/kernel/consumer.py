"""How many events a second one partition's consumer brings to effect: retune's consumer, and FastStream's.

Every side reads the same events from the same partition and writes one row for each. Ours also keeps the
inbox, the sequence check and an explicit offset, so that every effect is there once whatever dies; FastStream
by default commits offsets before the handler runs (an event can be lost), and `faststream-ack` commits after
each message (an event can come twice). The clock runs from the tenth part of the events to the last, so that
start-up is out of it. After each round the rows are compared with the events.

    python -m bench.kernel.consumer [--events 5000] [--rounds 5]
"""

import argparse
import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from bench.kernel.events import Event, events
from bench.kernel.parts import SERVICE, connect, running_parts
from bench.report import progress, summary, write
from deploy.local.stack import Stack
from shared.messaging.kafka import kafka_producer

TOPIC = "node.events"
SIDES = ("retune", "faststream-default", "faststream-ack")
DEADLINE_SECONDS = 120.0
CREATE_EFFECT = "CREATE TABLE IF NOT EXISTS effect (aggregate_id text NOT NULL, event_id text NOT NULL)"


async def main(num_events: int, num_rounds: int) -> None:
    rates: dict[str, list[float]] = defaultdict(list)
    async with running_parts() as stack:
        conn = await connect(stack)
        await conn.execute(CREATE_EFFECT)
        for number in range(num_rounds):
            sent = await send_all(stack, list(events(num_events, seed=f"round-{number}", topic=TOPIC)))
            for side in SIDES:
                rate = await one_round(stack, conn, side, sent)
                progress(f"round {number + 1}/{num_rounds} {side:20s} {rate:10,.0f} events/s")
                rates[side].append(rate)
        await conn.close()
    results = {side: {"events_per_second": summary(values)} for side, values in rates.items()}
    ours = results["retune"]["events_per_second"]["median"]
    for side in SIDES[1:]:
        results[side]["retune_is_times_faster"] = ours / results[side]["events_per_second"]["median"]
    write(
        "consumer",
        results,
        packages=("aiokafka", "asyncpg", "faststream"),
        settings={"events": num_events, "partitions": 1, "kafka": "4.3.1"},
    )


async def send_all(stack: Stack, sent: list[Event]) -> list[Event]:
    password = stack.kafka_password("provisioner")
    async with kafka_producer(stack.kafka_bootstrap, "provisioner", password, client_id="bench") as producer:
        acks = [
            await producer.send(
                TOPIC, value=event.value, key=event.key.encode(), headers=event.all_headers(), partition=0
            )
            for event in sent
        ]
        await asyncio.gather(*acks)
    return sent


async def one_round(stack: Stack, conn: asyncpg.Connection, side: str, sent: list[Event]) -> float:
    """Events per second of one side."""
    await conn.execute("TRUNCATE effect")
    warm = len(sent) // 10
    async with consuming(stack, side):
        await until_done(conn, warm)
        began, done = time.monotonic(), await conn.fetchval("SELECT count(*) FROM effect")
        await until_done(conn, len(sent))
        seconds = time.monotonic() - began
    rows = await conn.fetch("SELECT event_id FROM effect")
    assert sorted(row["event_id"] for row in rows) == sorted(event.event_id for event in sent), side
    return float(len(sent) - done) / seconds


async def until_done(conn: asyncpg.Connection, number: int) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await conn.fetchval("SELECT count(*) FROM effect") < number:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def consuming(stack: Stack, side: str) -> AsyncIterator[None]:
    operator = {"BENCH_BOOTSTRAP": stack.kafka_bootstrap, "BENCH_PASSWORD": stack.kafka_password("admin")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.kernel.consume_side", side),
        env=os.environ | stack.service_env(SERVICE) | operator,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.events, arguments.rounds))
