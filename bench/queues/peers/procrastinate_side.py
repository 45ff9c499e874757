"""Procrastinate in an environment of its own: `python procrastinate_side.py DSN install|fill|work NUMBER PAYLOAD`."""

import json
import sys
import time
from collections import Counter

import uvloop
from procrastinate import App, PsycopgConnector

TOGETHER = 500
CONCURRENCY = 20


async def main(dsn: str, order: str, number: int, payload: str) -> None:
    app = App(connector=PsycopgConnector(conninfo=dsn, max_size=CONCURRENCY + 2))
    done: Counter[int] = Counter()

    @app.task(name="work")
    async def one(number: int, payload: str) -> None:
        done[number] += 1

    async with app.open_async():
        if order == "install":
            await app.schema_manager.apply_schema_async()
        elif order == "fill":
            began = time.monotonic()
            for first in range(0, number, TOGETHER):
                numbers = range(first, min(number, first + TOGETHER))
                await one.batch_defer_async(*({"number": each, "payload": payload} for each in numbers))
            print(json.dumps({"seconds": time.monotonic() - began}), flush=True)
        else:
            print("ready", flush=True)
            sys.stdin.readline()
            await app.run_worker_async(
                concurrency=CONCURRENCY, wait=False, delete_jobs="successful", install_signal_handlers=False
            )
            print(json.dumps({"jobs": done.total(), "distinct": len(done)}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
