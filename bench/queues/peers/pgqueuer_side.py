"""PgQueuer in an environment of its own: `python pgqueuer_side.py DSN install|fill|work NUMBER PAYLOAD`."""

import json
import sys
import time
from collections import Counter
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode

TOGETHER = 1_000
BATCH = 200


async def main(dsn: str, order: str, number: int, payload: str) -> None:
    conn = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(conn))
    if order == "install":
        await queries.install()
    elif order == "fill":
        began = time.monotonic()
        for first in range(0, number, TOGETHER):
            numbers = range(first, min(number, first + TOGETHER))
            payloads = [json.dumps({"number": each, "payload": payload}).encode() for each in numbers]
            await queries.enqueue(["work"] * len(payloads), payloads, [0] * len(payloads))
        print(json.dumps({"seconds": time.monotonic() - began}), flush=True)
    else:
        await work(conn)
    await conn.close()


async def work(conn: asyncpg.Connection) -> None:
    done: Counter[int] = Counter()
    queuer = PgQueuer(AsyncpgDriver(conn))

    @queuer.entrypoint("work")
    async def one(job: Job) -> None:
        assert job.payload is not None
        done[json.loads(job.payload)["number"]] += 1

    print("ready", flush=True)
    sys.stdin.readline()
    await queuer.qm.run(dequeue_timeout=timedelta(seconds=1), batch_size=BATCH, mode=QueueExecutionMode.drain)
    print(json.dumps({"jobs": done.total(), "distinct": len(done)}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
