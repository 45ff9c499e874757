"""CPU of the services while nothing happens: without history and with it.

That is 100,000 finished jobs, 10,000 deployed versions, and 25,000 jobs of 500 tenants that wait for a pool of which
every node is held.

The whole local stack runs; a stand-in takes the place of vLLM and lists the deployed versions. Their CPU is read from
/proc over the same time before and after the tables are filled.

    python -m bench.growth.idle [--finished 100000] [--deployed 10000] [--waiting 25000] [--seconds 60]
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import psutil

from bench.growth.stand_in import loaded_names
from bench.kernel.submit_latency import register_base
from bench.report import progress, write
from deploy.local.stack import Stack
from schemas.specification import Resources
from schemas.topics import SERVICES
from services.serving_controller.settings import Settings

STAND_IN = Path(__file__).with_name("stand_in.py")
JOBS = """
    INSERT INTO job (id, tenant, state, spec, base_sha, dataset_id, submitted_at, verified, corrupt, turned_away,
                     requeues, preempted_at, evaluation)
    SELECT 'ftjob-' || number, 'demo', 'cancelled', '{"tier": "standard", "resources": {}}', 'none',
           'none', now(), '[]', '[]', '{}', '{}', '[]', '{}'
      FROM generate_series(1, $1::int) AS number"""
ATTEMPTS = """
    INSERT INTO attempt (job_id, number, pool, capacity_type, nodes, devices_per_node, scheduled_at, start_deadline,
                         facts, freed_at)
    SELECT 'ftjob-' || number, 1, 'cpu-spot', 'spot', 1, 1, now(), now(), '{}', now()
      FROM generate_series(1, $1::int) AS number"""
BUSY_POOL = """
    INSERT INTO pool (name, capacity_type, nodes, devices_per_node, price_per_hour, changed_at)
    VALUES ('busy', 'spot', 250, 1, 0.1, now())"""
HOLDING = """
    INSERT INTO attempt (job_id, number, tenant, pool, capacity_type, nodes, devices_per_node, scheduled_at,
                         start_deadline, facts, machines)
    SELECT 'ftjob-1', 1 + number, 't' || number, 'busy', 'spot', 1, 1, now(), now(), '{}',
           jsonb_build_array(number - 1)
      FROM generate_series(1, 250) AS number"""
WAITING = """
    INSERT INTO job (id, tenant, state, spec, base_sha, dataset_id, submitted_at, plan, config_hash, queued_at,
                     verified, corrupt, turned_away, requeues, preempted_at, evaluation)
    SELECT 'ftjob-waiting-' || number, 't' || number % 500, 'queued',
           jsonb_build_object('resources', $2::jsonb, 'tier', (ARRAY['standard', 'premium'])[1 + number / 500 % 2]),
           'none', 'none', now(), '{}', 'none', now() - number * interval '1 ms', '[]', '[]', '{}', '{}', '[]', '{}'
      FROM generate_series(1, $1::int) AS number"""
HELD = """
    INSERT INTO attempt (job_id, number, name, tenant, state, pool, capacity_type, devices_per_node, grace_seconds)
    SELECT 'ftjob-' || number, 1, 'a-ftjob-' || number || '-e1', 'demo', 'released', 'cpu-spot', 'spot', 1, 30
      FROM generate_series(1, $1::int) AS number"""
NODES = """
    INSERT INTO node (node_id, job_id, number, index, pool, price_per_hour, allocated_at, released_at)
    SELECT 'a-ftjob-' || number || '-e1-n0', 'ftjob-' || number, 1, 0, 'cpu-spot', 0, now(), now()
      FROM generate_series(1, $1::int) AS number"""
VERSIONS = """
    (SELECT number, 'slot-' || number AS slot, jsonb_build_object(
        'model_id', 'mv-' || number, 'full_name', 'ft:tiny:demo:' || number, 'kind', 'adapter', 'rank', 8,
        'digest', encode(sha256(number::text::bytea), 'hex'), 'base_model', 'tiny', 'base_sha', base_sha) AS servable,
        replica_set, jsonb_build_object('replica_id', replica_id, 'incarnation', incarnation, 'url', url) AS address
       FROM replica, generate_series(1, $1::int) AS number) AS versions"""
SLOTS = f"""
    INSERT INTO slot (tenant, name, generation, state, desired, route, served)
    SELECT 'demo', slot, 1, 'ready', servable, jsonb_build_object(
               'servable', servable, 'generation', 1,
               'addresses', CASE WHEN number <= $2::int THEN jsonb_build_array(address) ELSE '[]' END),
           ARRAY[servable ->> 'digest']
      FROM {VERSIONS}"""
USED = (
    "INSERT INTO slot_use SELECT 'demo', 'slot-' || number, now() FROM generate_series(1, $1::int) AS number"
)
WANTED = f"""
    INSERT INTO wanted (tenant, slot, served_name, replica_set, servable, is_pending)
    SELECT 'demo', slot, (servable ->> 'full_name') || '@' || (servable ->> 'digest'), replica_set, servable, false
      FROM {VERSIONS}"""
REPLICA_SETS = "INSERT INTO wanted_replica_set (name) SELECT DISTINCT replica_set FROM wanted"
LOADED = """
    UPDATE replica SET loaded = (SELECT array_agg(served_name) FROM wanted JOIN slot_use USING (tenant, slot)),
           version = nextval('version')
    RETURNING loaded"""


async def main(finished: int, deployed: int, waiting: int, seconds: float) -> None:
    async with running_stack() as stack:
        empty = await idle(stack, seconds)
        await fill(stack, finished=finished, deployed=deployed, waiting=waiting)
        full = await idle(stack, seconds)
    write(
        "idle-cpu",
        {"percent_of_a_core_without_history": empty, "percent_of_a_core": full},
        packages=("aiokafka", "asyncpg", "faststream", "uvicorn"),
        settings={"finished": finished, "deployed": deployed, "waiting": waiting, "seconds": seconds},
    )


@asynccontextmanager
async def running_stack() -> AsyncIterator[Stack]:
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder) / "state", report=progress)
        await stack.up([name for name in SERVICES if name != "serving_controller"])
        try:
            await start_controller(stack)
            register_base(stack, Path(folder))
            await until_ready(stack)
            yield stack
        finally:
            await stack.down()


async def start_controller(stack: Stack) -> None:
    await stack.start("serving_controller", command=(sys.executable, str(STAND_IN), "controller"))
    await stack.wait_healthy("serving_controller")


async def until_ready(stack: Stack) -> None:
    conn = await asyncpg.connect(stack.postgres_dsn("serving_controller"))
    async with asyncio.timeout(300):
        while not await conn.fetchval("SELECT EXISTS (SELECT FROM replica WHERE phase = 'ready')"):
            await asyncio.sleep(0.2)
    await conn.close()


async def fill(stack: Stack, *, finished: int, deployed: int, waiting: int) -> None:
    async with connected(stack, "scheduler") as conn:
        await conn.execute(JOBS, finished)
        await conn.execute(ATTEMPTS, finished)
        await conn.execute(BUSY_POOL)
        await conn.execute(HOLDING)
        await conn.execute(WAITING, waiting, Resources(pool="busy").model_dump_json())
    async with connected(stack, "provisioner") as conn:
        await conn.execute(HELD, finished)
        await conn.execute(NODES, finished)
    day = stack.state.root / "nodes" / "forgotten" / datetime.now(UTC).date().isoformat()
    for number in range(finished):
        (day / f"a-ftjob-{number}-e1").mkdir(parents=True)
    await deploy(stack, deployed)


async def deploy(stack: Stack, deployed: int) -> None:
    """Slots of so many versions, and the replica has those that were used last; as the controller leaves them."""
    await stack.stop("serving_controller")
    async with connected(stack, "serving_controller") as conn:
        resident = Settings.model_fields["max_resident_adapters"].default
        await conn.execute(SLOTS, deployed, resident)
        await conn.execute(WANTED, deployed)
        await conn.execute(USED, min(deployed, resident))
        await conn.execute(REPLICA_SETS)
        names = await conn.fetchval(LOADED)
    [base] = (stack.state.root / "scratch" / "serving_controller" / "base-models").glob("*")
    loaded_names(base).write_text("\n".join(names))
    await start_controller(stack)


@asynccontextmanager
async def connected(stack: Stack, role: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(stack.postgres_dsn(role), command_timeout=300)
    yield conn
    await conn.execute("VACUUM ANALYZE")
    await conn.close()


async def idle(stack: Stack, seconds: float) -> Mapping[str, float]:
    """Percent of a core of each service, of all together, and of the servers that they ask."""
    await asyncio.sleep(20)
    names = [*SERVICES, "kafka", "postgres"]
    before, began = {name: cpu_seconds(stack.pid(name)) for name in names}, time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - began
    used = {name: 100 * (cpu_seconds(stack.pid(name)) - before[name]) / passed for name in names}
    services = sum(used[name] for name in SERVICES)
    progress(
        f"services {services:.1f} %: " + ", ".join(f"{name} {value:.1f}" for name, value in used.items())
    )
    return {"services": services, **used}


def cpu_seconds(pid: int) -> float:
    """Of a process and what it started that still lives; a service's replicas and runners are no part of it."""
    process = psutil.Process(pid)
    parts = [process, *(process.children(recursive=True) if "postgres" in process.name() else ())]
    return sum(map(_cpu_seconds, parts))


def _cpu_seconds(process: psutil.Process) -> float:
    """Nothing of a backend of Postgres that has ended meanwhile."""
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.NoSuchProcess:
        return 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument("--deployed", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=25_000)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.finished, arguments.deployed, arguments.waiting, arguments.seconds))
