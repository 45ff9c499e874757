"""From the submit over HTTP to JobScheduled in Kafka: with an empty queue, and behind 100,000 waiting jobs.

The gateway, ingest, the scheduler and the registry run as they do in the local stack; nodes are announced for
a pool that is larger than a round, so that every job is scheduled as soon as its dataset is known to be ready.
Submits come at a fixed rate whether or not earlier ones were answered, and the clock of each starts at the moment
it was due. The 100,000 wait for another pool, of which every node is taken.

    python -m bench.kernel.submit_latency [--rate 50] [--seconds 20] [--rounds 5] [--queued 100000]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from bench.kernel.parts import operator_login
from bench.report import percentile, progress, summary, write
from deploy.local.stack import Stack
from schemas.base import CapacityType
from schemas.job import JobScheduled
from schemas.node import PoolCapacityChanged
from shared.messaging.delivery import Delivery
from shared.messaging.reader import TopicReader
from tests.integration.voices import voices
from tests.tiny_model import build_tiny_model

SERVICES = ("gateway", "ingest", "scheduler", "registry")
DRAIN_SECONDS = 120.0
NODES = 10_000
"""More than a round has jobs. A decision takes longer with each machine of a pool: half a second with a million."""
QUEUE = """
    INSERT INTO job (id, tenant, state, spec, base_sha, dataset_id, submitted_at, retry_of, plan, config_hash,
                     verified, corrupt, queued_at, turned_away, requeues, preempted_at, evaluation)
    SELECT 'ftjob-queued-' || number, tenant, 'queued', jsonb_set(spec, '{resources,pool}', '"full"'), base_sha,
           dataset_id, submitted_at - number * interval '1 ms', retry_of, plan, config_hash, verified, corrupt,
           submitted_at - number * interval '1 ms', '{}', '{}', '[]', '{}'
      FROM (SELECT * FROM job LIMIT 1) AS any_job, generate_series(1, $1) AS number"""
FORGET = """
    DELETE FROM timer; DELETE FROM attempt; DELETE FROM ignored;
    DELETE FROM job WHERE id <> (SELECT min(id) FROM job);
    VACUUM ANALYZE job; VACUUM ANALYZE attempt"""


async def main(rate: int, seconds: int, num_rounds: int, queued: int) -> None:
    sides = {"alone": 0, f"behind-{queued}": queued}
    results: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    async with running_platform() as (stack, client, file_id):
        scheduler = await asyncpg.connect(stack.postgres_dsn("scheduler"))
        for number in range(num_rounds):
            for side, waiting in sides.items():
                await forget(scheduler, waiting)
                latencies = await one_round(stack, client, file_id, rate, seconds)
                for share, name in ((0.5, "p50_ms"), (0.99, "p99_ms")):
                    results[side][name].append(1000 * percentile(latencies, share))
                text = ", ".join(f"{name} {values[-1]:.1f}" for name, values in results[side].items())
                progress(f"round {number + 1}/{num_rounds} {side:16s} {text}")
        await scheduler.close()
    write(
        "submit-latency",
        {side: {name: summary(values) for name, values in each.items()} for side, each in results.items()},
        packages=("aiokafka", "asyncpg", "faststream", "fastapi", "uvicorn"),
        settings={"submits_per_second": rate, "seconds": seconds, "kafka": "4.3.1"},
    )


async def forget(scheduler: asyncpg.Connection, waiting: int) -> None:
    """What earlier rounds left, so that each begins alike; then the queue of this one."""
    for statement in FORGET.split(";"):
        await scheduler.execute(statement)
    if waiting:
        await scheduler.execute(QUEUE, waiting)
        await scheduler.execute("VACUUM ANALYZE job")


async def one_round(
    stack: Stack, client: httpx.AsyncClient, file_id: str, rate: int, seconds: int
) -> list[float]:
    """Seconds from each submit to its JobScheduled; fails unless every job was scheduled once."""
    due: dict[str, float] = {}
    scheduled: dict[str, float] = {}
    async with TopicReader(operator_login(stack), ["job.events"], from_end=True) as reader:
        listening = asyncio.create_task(listen(reader, scheduled))
        began = time.monotonic() + 0.5
        submits = [submit(client, file_id, began + number / rate, due) for number in range(rate * seconds)]
        await asyncio.gather(*submits)
        async with asyncio.timeout(DRAIN_SECONDS):
            while not due.keys() <= scheduled.keys():
                await asyncio.sleep(0.05)
        listening.cancel()
    return [scheduled[job_id] - at for job_id, at in due.items()]


async def submit(client: httpx.AsyncClient, file_id: str, at: float, due: dict[str, float]) -> None:
    await asyncio.sleep(max(0.0, at - time.monotonic()))
    body = {"model": "tiny", "training_file": file_id, "retune": {"recipe": {"num_epochs": 1}}}
    answer = await client.post("fine_tuning/jobs", json=body)
    answer.raise_for_status()
    due[answer.json()["id"]] = at


async def listen(reader: TopicReader, scheduled: dict[str, float]) -> None:
    async for delivery in reader.follow():
        if isinstance(delivery, Delivery) and isinstance(delivery.message, JobScheduled):
            assert delivery.message.job_id not in scheduled, f"{delivery.message.job_id} was scheduled twice"
            scheduled[delivery.message.job_id] = time.monotonic()


@asynccontextmanager
async def running_platform() -> AsyncIterator[tuple[Stack, httpx.AsyncClient, str]]:
    """The stack, a client of its API, and the id of a training file whose dataset is ready."""
    async with AsyncExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        stack = Stack(folder / "state", report=progress)
        await stack.up(SERVICES)
        closing.push_async_callback(stack.down)
        env = stack.operator_env()
        headers = {"Authorization": f"Bearer {env['RETUNE_API_KEY']}"}
        limits = httpx.Limits(max_connections=200)
        client = await closing.enter_async_context(
            httpx.AsyncClient(
                base_url=env["RETUNE_BASE_URL"] + "/", headers=headers, timeout=60, limits=limits
            )
        )
        register_base(stack, folder)
        await announce_nodes(stack)
        file_id = await upload(client)
        await one_round(stack, client, file_id, rate=5, seconds=2)
        yield stack, client, file_id


def register_base(stack: Stack, folder: Path) -> None:
    model = build_tiny_model(folder / "base", text="A sentence of words that the tokenizer learns. " * 50)
    command = [sys.executable, "-m", "cli.app", "models", "register-base", "tiny", str(model)]
    subprocess.run(command, env=os.environ | stack.operator_env(), check=True, capture_output=True)


async def announce_nodes(stack: Stack) -> None:
    async with voices(stack) as speaking:
        for name, nodes in (("wide", NODES), ("full", 0)):
            fact = PoolCapacityChanged(
                pool=name,
                capacity_type=CapacityType.SPOT,
                nodes=nodes,
                free=nodes,
                devices_per_node=1,
                price_per_hour="1",
            )
            await speaking.say("provisioner", fact)


async def upload(client: httpx.AsyncClient) -> str:
    rows: list[dict[str, Any]] = [
        {
            "messages": [
                {"role": "user", "content": f"Say {n}."},
                {"role": "assistant", "content": f"It is {n}."},
            ]
        }
        for n in range(100)
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    answer = await client.post(
        "files", files={"file": ("train.jsonl", content)}, data={"purpose": "fine-tune"}
    )
    answer.raise_for_status()
    return str(answer.json()["id"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queued", type=int, default=100_000)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rate, arguments.seconds, arguments.rounds, arguments.queued))
