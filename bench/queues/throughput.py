"""Durable jobs a second in Postgres: the kernel's leased tasks, and three queues for Postgres that others use.

Each side first puts its jobs into its own tables, in transactions of 500 or 1,000. Then a process of it starts,
connects, and begins at a word; the clock stops when no job is left in the table. A job does nothing and has 180 bytes
of payload; each side counts what it did, and each job must be done once. All use one Postgres (`fsync` and
`synchronous_commit` on), in turns. The peers are installed from the package registries into a scratch folder.

    python -m bench.queues.throughput [--jobs 20000] [--rounds 5]
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from bench.kernel.parts import SERVICE, running_parts, until_empty
from bench.report import progress, summary, write
from deploy.local.stack import Stack

PEERS = Path(__file__).with_name("peers")
PYTHON_PEERS = (
    "pgqueuer[asyncpg]==1.6.0",
    "procrastinate==3.10.0",
    "psycopg[binary]==3.3.9",
    "uvloop==0.23.0",
)
NODE_PEERS = ("graphile-worker@0.17.3",)
PAYLOAD = "x" * 180
DEADLINE_SECONDS = 300.0


@dataclass(frozen=True)
class Side:
    name: str
    program: str
    """File in `peers`; of ours, the module."""
    is_left: str
    """Query of the jobs that are not done."""
    share: float = 1.0
    """Of the jobs; a slow side gets fewer, and its rate is compared."""
    work: str = "work"


SIDES = (
    Side("retune", "bench.queues.retune_side", "SELECT FROM task", share=0.2),
    Side("graphile-worker", "graphile_side.js", "SELECT FROM graphile_worker._private_jobs"),
    Side(
        "graphile-worker, one by one",
        "graphile_side.js",
        "SELECT FROM graphile_worker._private_jobs",
        work="work-one-by-one",
    ),
    Side("pgqueuer", "pgqueuer_side.py", "SELECT FROM pgqueuer"),
    Side("procrastinate", "procrastinate_side.py", "SELECT FROM procrastinate_jobs", share=0.2),
)


@dataclass(frozen=True)
class Place:
    """Where a side runs: what starts its program, its database and the folder of its packages."""

    command: tuple[str, ...]
    dsn: str
    folder: Path


async def main(num_jobs: int, num_rounds: int) -> None:
    filled: dict[str, list[float]] = defaultdict(list)
    worked: dict[str, list[float]] = defaultdict(list)
    async with running_parts() as stack:
        with tempfile.TemporaryDirectory() as scratch:
            places = await install(stack, Path(scratch))
            versions = peer_versions(Path(scratch))
            for number in range(num_rounds):
                for side in SIDES:
                    jobs = int(num_jobs * side.share)
                    fill, work = await one_round(side, places[side.program], jobs)
                    filled[side.name].append(fill)
                    worked[side.name].append(work)
                    rates = f"{fill:9,.0f} put, {work:9,.0f} done a second"
                    progress(f"round {number + 1}/{num_rounds} {side.name:28s} {rates}")
    results: dict[str, dict[str, Any]] = {
        name: {"done_per_second": summary(worked[name]), "put_per_second": summary(filled[name])}
        for name in worked
    }
    for name in list(results)[1:]:
        ours, peer = worked["retune"], worked[name]
        results[name]["retune_is_times_faster"] = summary([a / b for a, b in zip(ours, peer, strict=True)])
    write(
        "queues",
        results,
        packages=("asyncpg", "uvloop"),
        settings={
            "jobs": {side.name: int(num_jobs * side.share) for side in SIDES},
            "payload_bytes": len(PAYLOAD),
            "peers": versions,
        },
    )


async def one_round(side: Side, place: Place, jobs: int) -> tuple[float, float]:
    """Return how many jobs a second were put into the queue, and how many done."""
    conn = await asyncpg.connect(place.dsn)
    filling = await start(place, "fill", jobs)
    out, _ = await filling.communicate()
    fill_seconds = json.loads(out)["seconds"]
    await conn.execute("VACUUM ANALYZE")
    working = await start(place, side.work, jobs)
    assert working.stdin is not None
    assert working.stdout is not None
    assert await working.stdout.readline() == b"ready\n", side.name
    began = time.monotonic()
    working.stdin.write(b"begin\n")
    await until_empty(conn, side.is_left, deadline_seconds=DEADLINE_SECONDS)
    seconds = time.monotonic() - began
    out, _ = await working.communicate(b"end\n")
    assert json.loads(out) == {"jobs": jobs, "distinct": jobs}, f"{side.name}: {out.decode()} of {jobs}"
    await conn.close()
    return jobs / fill_seconds, jobs / seconds


async def start(place: Place, order: str, jobs: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(*place.command, place.dsn, order, str(jobs), PAYLOAD),
        env=os.environ | {"NODE_PATH": str(place.folder / "node_modules")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def install(stack: Stack, folder: Path) -> Mapping[str, Place]:
    """Fetch the peers' packages, give each a database of its own, and create its tables."""
    python, node = folder / "python", shutil.which("node")
    assert node is not None, "graphile-worker needs Node.js, and there is no `node`"
    await asyncio.to_thread(_fetch, folder, python)
    own = Place(
        (sys.executable, "-m", "bench.queues.retune_side"),
        stack.service_env(SERVICE)["TRACKER_POSTGRES_DSN"],
        folder,
    )
    places = {"bench.queues.retune_side": own}
    administrator = await asyncpg.connect(stack.postgres_dsn("postgres"))
    for program in sorted({side.program for side in SIDES} - places.keys()):
        database = program.partition(".")[0]
        await administrator.execute(f"CREATE DATABASE {database}")
        dsn = urlsplit(stack.postgres_dsn("postgres"))._replace(path=f"/{database}").geturl()
        command = node if program.endswith(".js") else str(python / "bin/python")
        places[program] = Place((command, str(PEERS / program)), dsn, folder)
        installing = await start(places[program], "install", 0)
        assert await installing.wait() == 0, f"{program} could not create its tables"
    await administrator.close()
    return places


def _fetch(folder: Path, python: Path) -> None:
    for command in (
        [sys.executable, "-m", "venv", str(python)],
        [str(python / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", *PYTHON_PEERS],
        ["npm", "install", "--loglevel=error", "--no-audit", "--no-save", *NODE_PEERS],
    ):
        subprocess.run(command, cwd=folder, check=True)


def peer_versions(folder: Path) -> dict[str, str]:
    package = folder / "node_modules" / "graphile-worker" / "package.json"
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    return {
        **dict(each.replace("[asyncpg]", "").replace("[binary]", "").split("==") for each in PYTHON_PEERS),
        "graphile-worker": json.loads(package.read_text())["version"],
        "node": node.stdout.strip(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.jobs, arguments.rounds))
