"""From a service's start to its first healthy answer: `python -m bench.starts`.

Each service is started alone on the local stack's Kafka, Postgres and S3, whose schemas and topics are there; the
first start of each, which migrates and fills caches, does not count. Processor time and memory are the service's own
process's once it is healthy: modules imported, connections open, topics assigned.
"""

import asyncio
import tempfile
import time
from pathlib import Path

import psutil

from bench import report
from deploy.local.stack import Stack
from schemas.topics import SERVICES

ROUNDS = 5


def main() -> None:
    asyncio.run(run())


async def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder) / "state", report=report.progress)
        await stack.up(())
        try:
            starts = {name: [await start(stack, name) for _ in range(ROUNDS + 1)][1:] for name in SERVICES}
        finally:
            await stack.down()
    packages = ("aiokafka", "asyncpg", "pydantic")
    report.write("starts", report.summaries(starts), packages=packages, settings={"rounds": ROUNDS})


async def start(stack: Stack, name: str) -> report.Start:
    began = time.monotonic()
    await stack.start(name)
    await stack.wait_healthy(name)
    seconds = time.monotonic() - began
    process = psutil.Process(stack.pid(name))
    times, memory = process.cpu_times(), process.memory_full_info()
    started = report.Start(round(seconds, 2), round(times.user + times.system, 2), round(memory.uss / 2**20))
    report.progress(f"{name}: {started}")
    await stack.stop(name)
    return started


if __name__ == "__main__":
    main()
