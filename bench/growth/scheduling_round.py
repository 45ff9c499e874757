"""Free nodes for a long queue: the scheduler behind 100,000 finished and 25,000 waiting jobs of 500 tenants.

The tables are real, the process is this one: each round is a transaction of the scheduler's own handlers. A tenant's
jobs came together, so that the order changes with each grant; each tenant's have two kinds.

    python -m bench.growth.scheduling_round [--finished 100000] [--tenants 500] [--waiting 50] [--free 250]
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import asyncpg

from bench.kernel.parts import running_parts
from bench.report import progress, summary, write
from schemas.lifecycle import JobState
from services.scheduler import queue_store, store
from services.scheduler.decide.decision import Policy
from services.scheduler.handlers import Handlers
from shared.clock import utc_now
from shared.messaging.unit import Unit
from shared.postgres.database import Database
from shared.postgres.migrate import migrate
from tests.builders import a_dataset, a_job, a_job_spec, a_pool
from tests.integration import scheduler_rows

MODEL = "ftjob-model"
POOL = "wide"
COPY = """
    INSERT INTO job (id, tenant, state, spec, base_sha, dataset_id, submitted_at, plan, config_hash, verified,
                     corrupt, queued_at, turned_away, requeues, preempted_at, evaluation)
    SELECT 'ftjob-' || $2::text || '-' || owner || '-' || number, 't' || owner, $3::text,
           jsonb_set(spec, '{tier}', CASE WHEN number % 2 = 0 THEN '"premium"' ELSE '"standard"' END::jsonb),
           base_sha, dataset_id, submitted_at, plan, config_hash, verified, corrupt,
           now() - owner * interval '1 s' - number * interval '1 ms', '{}', '{}', '[]', '{}'
      FROM job, generate_series(1, $4::int) AS owner, generate_series(1, $5::int) AS number WHERE id = $1"""
BEGIN_AGAIN = """
    DELETE FROM timer; DELETE FROM unpublished; DELETE FROM outbox; DELETE FROM attempt;
    UPDATE job SET state = 'queued', attempt = 0 WHERE state = 'provisioning';
    VACUUM ANALYZE job; VACUUM ANALYZE attempt"""


async def main(finished: int, tenants: int, waiting: int, free: int, num_rounds: int) -> None:
    async with running_parts() as stack:
        dsn = stack.postgres_dsn("scheduler")
        await migrate("scheduler", dsn)
        database = Database(dsn, application="bench")
        await database.open()
        conn = await asyncpg.connect(dsn)
        await fill(database, conn, finished=finished, tenants=tenants, waiting=waiting, free=free)
        longest, whole = [], []
        for number in range(num_rounds):
            for statement in BEGIN_AGAIN.split(";"):
                await conn.execute(statement)
            rounds = await grant_all(database, free)
            longest.append(1000 * max(rounds))
            whole.append(sum(rounds))
            progress(
                f"{number + 1}/{num_rounds}: {len(rounds)} rounds, longest {longest[-1]:.0f} ms, {whole[-1]:.2f} s"
            )
        await conn.close()
        await database.close()
    write(
        "scheduling-round",
        {"longest_round_ms": summary(longest), "all_free_nodes_s": summary(whole)},
        packages=("asyncpg",),
        settings={"finished": finished, "tenants": tenants, "waiting_each": waiting, "free": free},
    )


async def fill(
    database: Database, conn: asyncpg.Connection, *, finished: int, tenants: int, waiting: int, free: int
) -> None:
    job = a_job(JobState.QUEUED, id=MODEL, spec=a_job_spec(), dataset=a_dataset())
    async with database.transaction() as unit:
        assert job.dataset is not None
        await store.save_dataset(unit, job.dataset)
        await store.add_job(unit, replace(job, state=JobState.VALIDATING))
        await scheduler_rows.save(unit, job)
        await queue_store.save_pool(unit, a_pool(POOL, nodes=free))
    await conn.execute(COPY, MODEL, "done", "succeeded", 1, finished)
    await conn.execute(COPY, MODEL, "waiting", "queued", tenants, waiting)
    await conn.execute("UPDATE job SET state = 'succeeded' WHERE id = $1", MODEL)


async def grant_all(database: Database, free: int) -> Sequence[float]:
    """Seconds of each round until no node is free."""
    handlers, seconds = Handlers(Policy()), []
    while True:
        began = time.monotonic()
        async with database.transaction() as conn:
            await handlers.start_waiting(Unit(conn, "scheduler", utc_now() + timedelta(seconds=1)))
        seconds.append(time.monotonic() - began)
        if await database.fetchval("SELECT sum(nodes) FROM attempt") == free:
            return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument("--tenants", type=int, default=500)
    parser.add_argument("--waiting", type=int, default=50, help="of each tenant")
    parser.add_argument("--free", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(
        main(arguments.finished, arguments.tenants, arguments.waiting, arguments.free, arguments.rounds)
    )
