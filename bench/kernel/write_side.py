"""A service that only writes: `python -m bench.kernel.write_side on|off RATE SECONDS`; RATE 0 is full speed.

It prints how many events it committed, and relays on until it is ended.
"""

import asyncio
import os
import sys
import time

from bench.kernel.parts import SERVICE
from bench.kernel.relay_side import a_relay
from schemas.base import CapacityType
from schemas.cost import CostAccrued
from shared.clock import utc_now
from shared.messaging.relay import Relay
from shared.messaging.unit import Unit
from shared.postgres.database import Database

NUM_WRITERS = 16
NUM_AGGREGATES = 1_000


class Writers:
    def __init__(self, database: Database, relay: Relay) -> None:
        self._database = database
        self._relay = relay
        self.written = 0

    async def write(self, number: int) -> None:
        async with self._database.transaction() as conn:
            unit = Unit(conn, SERVICE, utc_now())
            await unit.emit(
                CostAccrued(
                    job_id=f"job-{number % NUM_AGGREGATES}",
                    tenant="acme",
                    attempt=1,
                    node_seconds=1.0,
                    cost="0.125",
                    total="12.5",
                    capacity_type=CapacityType.SPOT,
                    until=unit.now,
                )
            )
        self._relay.wake_event.set()
        self.written += 1

    async def at_full_speed(self, writer: int, until: float) -> None:
        number = writer
        while time.monotonic() < until:
            await self.write(number)
            number += NUM_WRITERS

    async def at_rate(self, rate: int, until: float) -> None:
        """As many writers at once as the rate needs, but no more than connections."""
        began, number, running = time.monotonic(), 0, set()
        while (due := began + number / rate) < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self.write(number))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.gather(*running)


async def main(side: str, rate: int, seconds: int) -> None:
    database = Database(os.environ["BENCH_DSN"], application="bench", max_size=NUM_WRITERS + 2)
    await database.open()
    relay = a_relay(database)
    relaying = asyncio.create_task(relay.run() if side == "on" else asyncio.Event().wait())
    await asyncio.sleep(1.0)  # both sides: the relay connects meanwhile
    writers, until = Writers(database, relay), time.monotonic() + seconds
    if rate:
        await writers.at_rate(rate, until)
    else:
        await asyncio.gather(*(writers.at_full_speed(number, until) for number in range(NUM_WRITERS)))
    print(writers.written, flush=True)
    await relaying


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
