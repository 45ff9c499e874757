"""The kernel's tasks as a process: `python -m bench.queues.retune_side DSN fill|work NUMBER PAYLOAD`."""

import asyncio
import json
import sys
import time
from collections import Counter
from datetime import timedelta

import uvloop

from shared.clock import utc_now
from shared.messaging.tasks import TaskKind, Tasks
from shared.messaging.unit import Task, Unit
from shared.postgres.database import Database

TOGETHER = 1_000
CONCURRENCY = 8
TENANTS = 10


class Work(Task, frozen=True):
    number: int
    payload: str

    @property
    def key(self) -> str:
        return str(self.number)


async def main(dsn: str, order: str, number: int, payload: str) -> None:
    database = Database(dsn, application="bench", max_size=CONCURRENCY + 2)
    await database.open()
    if order == "fill":
        await fill(database, number, payload)
    else:
        await work(database)
    await database.close()


async def fill(database: Database, number: int, payload: str) -> None:
    began = time.monotonic()
    for first in range(0, number, TOGETHER):
        async with database.transaction() as conn:
            unit = Unit(conn, "tracker", utc_now())
            for each in range(first, min(number, first + TOGETHER)):
                await unit.start_task(Work(number=each, payload=payload, tenant=f"t{each % TENANTS}"))
    report({"seconds": time.monotonic() - began})


async def work(database: Database) -> None:
    """Work with the lease times of a service until a second line comes."""
    done: Counter[int] = Counter()

    async def one(task: Work) -> None:
        done[task.number] += 1

    async def nothing(_task: Work, _result: None, _unit: Unit) -> None:
        pass

    async def failed(_task: Work, error: Exception, _unit: Unit) -> None:
        raise error

    ttl, renew = timedelta(seconds=15), timedelta(seconds=5)
    tasks = Tasks(database, service="tracker", owner="bench-0", ttl=ttl, renew=renew, wake=lambda: None)
    tasks.on(TaskKind(Work, one, nothing, failed, attempts=3, concurrency=CONCURRENCY))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    working = asyncio.create_task(tasks.run())
    await asyncio.to_thread(sys.stdin.readline)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    report({"jobs": done.total(), "distinct": len(done)})


def report(results: dict[str, float]) -> None:
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
