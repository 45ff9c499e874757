"""How long a committed event takes to a consumer, at which rate, and what the relay costs the writers.

One process writes as a service does, a transaction for each event, with its relay beside it; another reads
the topic. First 16 writers go as fast as they can, with the relay and without, in turns. Then events come at
fixed rates, late or not, and the clock of each runs from the start of its transaction to its arrival at the
consumer; the first seconds of each round warm it up. The highest rate whose p99 stays below 50 ms is
reported. Every event must arrive once.

    python -m bench.kernel.relay_latency [--seconds 5] [--rounds 5] [--rates 250 500 1000 1500 2000 3000]
"""

import argparse
import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import asyncpg
from aiokafka import AIOKafkaConsumer

from bench.kernel import relay_side
from bench.kernel.outbox_drain import consumer
from bench.kernel.parts import connect, running_parts, until_empty
from bench.report import percentile, progress, summary, write
from deploy.local.stack import Stack

UNPUBLISHED = "SELECT FROM unpublished"
WANTED_P99_SECONDS = 0.050
DRAIN_SECONDS = 120.0
WARM_UP_SECONDS = 3
"""Of each round, not timed: the first events wait for connections and for code that nobody has run yet."""


async def main(seconds: int, num_rounds: int, rates: list[int]) -> None:
    writers: dict[str, list[float]] = defaultdict(list)
    latencies: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    async with running_parts() as stack:
        conn = await connect(stack)
        for number in range(num_rounds):
            for side in ("off", "on"):
                written, _ = await one_round(stack, conn, side, rate=0, seconds=seconds)
                writers[side].append(written / seconds)
            text = ", ".join(f"relay {side} {values[-1]:,.0f}/s" for side, values in writers.items())
            progress(f"round {number + 1}/{num_rounds} writers: {text}")
            for rate in rates:
                _, delays = await one_round(stack, conn, "on", rate=rate, seconds=seconds)
                latencies[rate]["p50_ms"].append(1000 * percentile(delays, 0.5))
                latencies[rate]["p99_ms"].append(1000 * percentile(delays, 0.99))
                text = ", ".join(f"{name} {values[-1]:.1f}" for name, values in latencies[rate].items())
                progress(f"round {number + 1}/{num_rounds} {rate:5d} events/s: {text}")
        await conn.close()
    by_rate = {
        rate: {name: summary(values) for name, values in each.items()} for rate, each in latencies.items()
    }
    good = [rate for rate, each in by_rate.items() if each["p99_ms"]["median"] < 1000 * WANTED_P99_SECONDS]
    off, on = summary(writers["off"]), summary(writers["on"])
    write(
        "relay-latency",
        {
            "highest_rate_with_p99_below_50_ms": max(good, default=0),
            "writers_per_second": {"relay_off": off, "relay_on": on},
            "writers_lose_percent": 100 * (1 - on["median"] / off["median"]),
            "commit_to_consumer": by_rate,
        },
        packages=("aiokafka", "asyncpg"),
        settings={"writers": 16, "aggregates": 1000, "seconds": seconds, "kafka": "4.3.1"},
    )


async def one_round(
    stack: Stack, conn: asyncpg.Connection, side: str, *, rate: int, seconds: int
) -> tuple[int, list[float]]:
    """How many events were written, and the seconds that each took to the consumer."""
    await conn.execute("TRUNCATE outbox, unpublished, set_aside, sequence")
    async with consumer(stack) as reading:
        await reading.seek_to_end(*reading.assignment())
        for partition in reading.assignment():
            await reading.position(partition)
        arrivals: dict[str, tuple[float, float]] = {}
        listening = asyncio.create_task(listen(reading, arrivals))
        async with writing(stack, side, rate, WARM_UP_SECONDS + seconds) as process:
            assert process.stdout is not None
            written = int(await process.stdout.readline())
            if side == "on":
                await until_empty(conn, UNPUBLISHED, deadline_seconds=DRAIN_SECONDS)
                async with asyncio.timeout(DRAIN_SECONDS):
                    while len(arrivals) < written:
                        await asyncio.sleep(0.02)
        listening.cancel()
    assert side == "off" or len(arrivals) == written, f"{len(arrivals)} of {written} events arrived"
    first = min((began for began, _ in arrivals.values()), default=0.0)
    return written, [took for began, took in arrivals.values() if began - first > WARM_UP_SECONDS]


async def listen(reading: AIOKafkaConsumer, arrivals: dict[str, tuple[float, float]]) -> None:
    """Of each event when it began and how many seconds it took."""
    async for record in reading:
        now = time.time()
        event_id = next(value for name, value in record.headers if name == "ce_id").decode()
        assert event_id not in arrivals, f"{event_id} came twice"
        began = datetime.fromisoformat(json.loads(record.value)["until"]).timestamp()
        arrivals[event_id] = began, now - began


@asynccontextmanager
async def writing(
    stack: Stack, side: str, rate: int, seconds: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.kernel.write_side", side, str(rate), str(seconds)),
        env=relay_side.environment(stack),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rates", type=int, nargs="+", default=[250, 500, 1000, 1500, 2000, 3000])
    arguments = parser.parse_args()
    asyncio.run(main(arguments.seconds, arguments.rounds, arguments.rates))
