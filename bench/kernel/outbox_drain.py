"""How fast a backlog in the outbox reaches Kafka: retune's relay and faststream-outbox, in turns.

Both sides relay the same events to the same topic with acks=all and idempotence. The clock starts when the
backlog is committed and stops when no row of it is left to send; both processes are warm and connected by
then. After every round the topic is read back: every event is there once. Retune's must be in order per aggregate;
of the peer, which promises it with no setting and comes nearest with one worker, the inversions are counted.

    python -m bench.kernel.outbox_drain [--events 100000] [--rounds 5]
"""

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
from aiokafka import AIOKafkaConsumer, TopicPartition

from bench.kernel import relay_side
from bench.kernel.events import Event, events
from bench.kernel.parts import TOPIC, connect, operator_login, running_parts, until_empty
from bench.report import progress, summary, write
from deploy.local.stack import Stack
from shared.messaging.delivery import topic_named
from shared.messaging.kafka import sasl

DEADLINE_SECONDS = 300.0
WARM_UP_EVENTS = 2_000


@dataclass(frozen=True)
class Side:
    name: str
    promises_order: bool
    is_left: str
    """Rows that are still to be sent."""
    fill: Callable[[asyncpg.Connection, list[Event]], Awaitable[None]]
    share: float = 1.0
    """Of the backlog; a slow side gets less, and its rate is compared."""


SIDES = (
    Side("retune", True, "SELECT FROM unpublished", relay_side.fill_outbox),
    Side("faststream-outbox", False, "SELECT FROM peer_outbox", relay_side.fill_peer),
    Side("faststream-outbox-alone", False, "SELECT FROM peer_outbox", relay_side.fill_peer, share=0.01),
)


async def main(num_events: int, num_rounds: int) -> None:
    rates: dict[str, list[float]] = defaultdict(list)
    inversions: dict[str, list[float]] = defaultdict(list)
    async with running_parts() as stack:
        conn = await connect(stack)
        await relay_side.create_peer_table(conn)
        for number in range(num_rounds):
            for side in SIDES:
                rate, inverted = await one_round(stack, conn, side, int(num_events * side.share), number)
                progress(
                    f"round {number + 1}/{num_rounds} {side.name:24s} {rate:8,.0f} events/s, {inverted} inversions"
                )
                rates[side.name].append(rate)
                inversions[side.name].append(inverted)
        await conn.close()
    results = {
        name: {"events_per_second": summary(values), "inversions": summary(inversions[name])}
        for name, values in rates.items()
    }
    ours = results["retune"]["events_per_second"]["median"]
    for name in list(results)[1:]:
        results[name]["retune_is_times_faster"] = ours / results[name]["events_per_second"]["median"]
    write(
        "outbox-drain",
        results,
        packages=("aiokafka", "asyncpg", "faststream", "faststream-outbox", "sqlalchemy"),
        settings={
            "events": num_events,
            "value_bytes": len(next(iter(events(1, seed=0))).value),
            "kafka": "4.3.1",
        },
    )


async def one_round(
    stack: Stack, conn: asyncpg.Connection, side: Side, num_events: int, number: int
) -> tuple[float, int]:
    """Events per second of one backlog, and how many came before an earlier one of their event stream."""
    starts = await ends(stack)
    async with relaying(stack, side) as wake:
        await side.fill(
            conn, list(events(int(WARM_UP_EVENTS * side.share), seed=f"warm-{side.name}-{number}"))
        )
        wake()
        await until_empty(conn, side.is_left, deadline_seconds=DEADLINE_SECONDS)
        backlog = list(events(num_events, seed=f"{side.name}-{number}"))
        await side.fill(conn, backlog)
        began = time.monotonic()
        wake()
        await until_empty(conn, side.is_left, deadline_seconds=DEADLINE_SECONDS)
        seconds = time.monotonic() - began
    inversions = await check(stack, starts, backlog, side)
    await conn.execute("TRUNCATE outbox, unpublished, set_aside, peer_outbox")
    return num_events / seconds, inversions


@asynccontextmanager
async def relaying(stack: Stack, side: Side) -> AsyncIterator[Callable[[], None]]:
    """The side's relay as a process of its own, once it is connected; what notifies it that rows were committed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.kernel.relay_side", side.name),
        env=relay_side.environment(stack),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"ready\n", side.name
        stdin = process.stdin
        yield lambda: stdin.write(b"committed\n")
    finally:
        process.terminate()
        await process.wait()


async def check(stack: Stack, starts: dict[TopicPartition, int], backlog: list[Event], side: Side) -> int:
    """Inversions; fails unless the topic has every event of the backlog once, and in order where that is promised."""
    expected_ids = {event.event_id for event in backlog}
    event_ids: list[str] = []
    last: dict[bytes, int] = defaultdict(int)
    inversions = 0
    async for record in records_since(stack, starts):
        headers = dict(record.headers)
        if (event_id := headers["ce_id"].decode()) not in expected_ids:
            continue
        event_ids.append(event_id)
        sequence = int(headers["ce_sequence"])
        inversions += sequence != last[record.key] + 1
        last[record.key] = sequence
    assert len(event_ids) == len(set(event_ids)) == len(expected_ids), (
        f"{side.name}: {len(event_ids)} records of {len(expected_ids)}"
    )
    assert not (side.promises_order and inversions), f"{side.name}: {inversions} records out of order"
    return inversions


async def ends(stack: Stack) -> dict[TopicPartition, int]:
    async with consumer(stack) as reading:
        return dict(await reading.end_offsets(reading.assignment()))


async def records_since(stack: Stack, starts: dict[TopicPartition, int]) -> AsyncIterator[Any]:
    async with consumer(stack) as reading:
        stops = await reading.end_offsets(list(starts))
        for partition, offset in starts.items():
            reading.seek(partition, offset)
        while any([await reading.position(partition) < stop for partition, stop in stops.items()]):
            for batch in (await reading.getmany(timeout_ms=200)).values():
                for record in batch:
                    yield record


@asynccontextmanager
async def consumer(stack: Stack) -> AsyncIterator[AIOKafkaConsumer]:
    login = operator_login(stack)
    reading = AIOKafkaConsumer(
        bootstrap_servers=login.bootstrap, enable_auto_commit=False, **sasl(login.username, login.password)
    )
    await reading.start()
    try:
        reading.assign([TopicPartition(TOPIC, number) for number in range(topic_named(TOPIC).partitions)])
        yield reading
    finally:
        await reading.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.events, arguments.rounds))
