"""The scheduler's SQL: one function per question. Only this file and `queue_store.py` know column names."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from asyncpg import Record
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from schemas.envelope import Envelope
from schemas.lifecycle import JobState
from schemas.specification import JobSpec
from services.scheduler.decide.overdue import OpenJob
from services.scheduler.model import Attempt, Base, Dataset, Deployment, Evaluation, Job, Plan
from shared.errors import StaleWrite
from shared.postgres.database import Connection, lock_name
from shared.postgres.rows import Columns, read

JOB = Columns("id, tenant, dataset_id, submitted_at, retry_of, later_dataset_ids, origin")
PROGRESS = Columns(
    "state, attempt, verified, corrupt, queued_at, not_before, turned_away=no_capacity_at, requeues, preempted_at,"
    " evaluation, best, stage"
)
PLANS = Columns("plan, stage_plans")
DATASET, PLAN = TypeAdapter(Dataset), TypeAdapter(Plan)
ATTEMPT = Columns(
    "number, pool=placement.pool, capacity_type=placement.capacity_type, nodes=placement.nodes,"
    " devices_per_node=placement.devices_per_node, device=placement.device, machines=placement.machines,"
    " taken_per_node=placement.taken_per_node, resume, scheduled_at, start_deadline, ends_by, facts, stop"
)
PARSED = 2_000
"""Number of specifications, of plans and of datasets that are kept parsed, some 60 MiB: each message of a job reads
them again."""
BASE = Columns("base_sha=sha, capabilities")
DEPLOYMENT = Columns("tenant, slot, generation, is_ready, message")

# The joined rows are read by their own statements: after a wait for the lock, a join would still show the
# attempt as it was before.
FIND_JOBS = f"""
    SELECT {JOB.selected}, spec::text, plan::text, stage_plans, {PROGRESS.selected}, revision
      FROM job WHERE id = ANY($1) ORDER BY id FOR UPDATE"""
LOCK_QUEUED_JOBS = """
    SELECT id FROM job WHERE id = ANY($1) AND state = 'queued' ORDER BY id FOR UPDATE SKIP LOCKED"""
LOCK_RUNNING_JOB = "SELECT id FROM job WHERE id = $1 AND state = 'running' FOR UPDATE SKIP LOCKED"

FIND_ATTEMPTS = f"""
    SELECT job_id, {ATTEMPT.selected}
      FROM attempt JOIN unnest($1::text[], $2::int[]) AS asked (job_id, number) USING (job_id, number)"""

ADD_JOB = f"""
    INSERT INTO job ({JOB.names}, spec, {PLANS.names}, {PROGRESS.names}, base_sha, config_hash)
    VALUES ({JOB.parameters()}, $8, {PLANS.parameters(9)}, {PROGRESS.parameters(11)}, $23, $24)"""

# A plan is longer than all that changes beside it, and would be compressed again.
SAVE_JOB = f"""
    UPDATE job SET config_hash = $3, (plan, stage_plans) = ROW(coalesce($4, plan), coalesce($5, stage_plans)),
                   ({PROGRESS.names}) = ROW({PROGRESS.parameters(6)}), revision = revision + 1
     WHERE id = $1 AND revision = $2 RETURNING id, revision"""

SAVE_ATTEMPT = f"""
    INSERT INTO attempt (job_id, tenant, {ATTEMPT.names}) VALUES ($1, $2, {ATTEMPT.parameters(3)})
    ON CONFLICT (job_id, number) DO UPDATE
       SET facts = excluded.facts, stop = excluded.stop, start_deadline = excluded.start_deadline,
           ends_by = excluded.ends_by"""

# The index job_under_way has the jobs in these states and no other.
OPEN_JOBS = f"""
    SELECT job.state, job.evaluation, {ATTEMPT.selected}
      FROM job JOIN attempt ON attempt.job_id = job.id AND attempt.number = job.attempt
     WHERE job.state IN ('provisioning', 'running', 'stopping', 'evaluating')"""

COUNT_OPEN_JOBS = """
    SELECT state, spec ->> 'tier', count(*) FROM job
     WHERE state NOT IN ('succeeded', 'failed', 'cancelled') GROUP BY 1, 2"""
LONGEST_QUEUED = """
    SELECT spec ->> 'tier', extract(epoch FROM now() - min(queued_at)) FROM job WHERE state = 'queued' GROUP BY 1"""

FREE_NODES = "UPDATE attempt SET freed_at = coalesce(freed_at, $3) WHERE job_id = $1 AND number = $2"

FIND_DATASETS = "SELECT dataset_id, facts::text FROM dataset WHERE dataset_id = ANY($1)"
SAVE_DATASET = """
    INSERT INTO dataset (dataset_id, state, facts) VALUES ($1, $2, $3)
    ON CONFLICT (dataset_id) DO UPDATE SET state = $2, facts = $3"""

JOBS_ON_DATASET = """
    SELECT id FROM job
     WHERE (dataset_id = $1 OR later_dataset_ids @> ARRAY[$1]) AND id > $2
       AND state IN ('validating', 'queued', 'paused')
     ORDER BY id LIMIT $3"""
JOBS_ON_BASE = """
    SELECT id FROM job
     WHERE base_sha = $1 AND id > $2 AND state NOT IN ('succeeded', 'failed', 'cancelled')
       AND spec ->> 'base_model' = $4 ORDER BY id LIMIT $3"""
JOBS_STALE_ON_BASE = """
    SELECT id FROM job
     WHERE base_sha = $1 AND id > $2 AND state NOT IN ('succeeded', 'failed', 'cancelled')
       AND spec ->> 'base_model' = $4 AND evaluation -> 'denial' ->> 'stale_base' = 'true'
     ORDER BY id LIMIT $3"""
SAVE_BASE_MODEL = f"""
    INSERT INTO base_model (name, {BASE.names}) VALUES ($1, {BASE.parameters(2)})
    ON CONFLICT (name) DO UPDATE SET {BASE.excluded}"""
FIND_BASE = f"SELECT {BASE.selected} FROM base_model WHERE name = $1 FOR SHARE"
FIND_OTHER_BASE = f"SELECT {BASE.selected} FROM base_model WHERE name = $1 AND base_sha <> $2"
JOBS_WAITING_FOR_SLOT = """
    SELECT id FROM job WHERE state = 'evaluating' AND tenant = $1 AND evaluation -> 'approval' ->> 'slot' = $2
     ORDER BY id"""

FIND_DUPLICATE = """
    SELECT id FROM job
     WHERE tenant = $1 AND config_hash = $2 AND id <> $3 AND submitted_at <= $4
       AND state NOT IN ('failed', 'cancelled')
     ORDER BY submitted_at, id LIMIT 1"""

FIND_DEPLOYMENT = f"SELECT {DEPLOYMENT.selected} FROM deployment WHERE tenant = $1 AND slot = $2"
SAVE_DEPLOYMENT = f"""
    INSERT INTO deployment AS known ({DEPLOYMENT.names}) VALUES ({DEPLOYMENT.parameters()})
    ON CONFLICT (tenant, slot) DO UPDATE SET {DEPLOYMENT.excluded}
     WHERE known.generation <= excluded.generation"""

PRUNE_IGNORED = """
    DELETE FROM ignored WHERE id = ANY(ARRAY(SELECT id FROM ignored WHERE at < now() - $1::interval LIMIT $2))"""
# Of jobs that are over: an open one still looks at its last.
PRUNE_ATTEMPTS = """
    DELETE FROM attempt WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM attempt
         WHERE freed_at < now() - $1::interval
           AND (SELECT state FROM job WHERE id = job_id) IN ('succeeded', 'failed', 'cancelled') LIMIT $2))"""
RECORD_IGNORED = "INSERT INTO ignored (job_id, event_id, type, reason, at) VALUES ($1, $2, $3, $4, $5)"


class FreedNodes(NamedTuple):
    job_id: str
    attempt: int
    at: datetime


async def find_job(conn: Connection, job_id: str) -> Job | None:
    """Locks the job."""
    return (await find_jobs(conn, [job_id])).get(job_id)


async def find_jobs(conn: Connection, job_ids: Sequence[str]) -> dict[str, Job]:
    """Lock the jobs, in the order of their ids; return those that there are, by id."""
    rows = await conn.fetch(FIND_JOBS, job_ids)
    if not rows:
        return {}
    tried = [row for row in rows if row["attempt"]]
    asked = [row["id"] for row in tried], [row["attempt"] for row in tried]
    attempts = {row["job_id"]: row for row in await conn.fetch(FIND_ATTEMPTS, *asked)} if tried else {}
    datasets = await find_datasets(
        conn, {name for row in rows for name in (row["dataset_id"], *row["later_dataset_ids"])}
    )
    return {
        row["id"]: read(
            Job,
            row,
            spec=_spec(row["spec"]),
            plan=_plan(row["plan"]) if row["plan"] else None,
            dataset=datasets.get(row["dataset_id"]),
            later_datasets=tuple(map(datasets.get, row["later_dataset_ids"])),
            run=read(Attempt, attempts[row["id"]]) if row["id"] in attempts else None,
        )
        for row in rows
    }


async def find_queued_jobs(conn: Connection, job_ids: Sequence[str]) -> dict[str, Job]:
    """Lock the jobs; return them by id, without those that are not queued any more or that somebody else is at."""
    locked = [row["id"] for row in await conn.fetch(LOCK_QUEUED_JOBS, job_ids)]
    return await find_jobs(conn, locked) if locked else {}


async def find_running_job(conn: Connection, job_id: str) -> Job | None:
    """Locks the job; None if it does not run any more or somebody else is at it."""
    locked = await conn.fetchval(LOCK_RUNNING_JOB, job_id)
    return await find_job(conn, job_id) if locked else None


async def add_job(conn: Connection, job: Job) -> None:
    """A new job, of which nothing is known but its submission."""
    row = (*JOB.values(job), to_jsonable_python(job.spec), *PLANS.values(job), *PROGRESS.values(job))
    await conn.execute(ADD_JOB, *row, job.spec.base_sha, job.config_hash)


async def save_jobs(
    conn: Connection, jobs: Sequence[Job], *, planned_before: Collection[str] = ()
) -> list[Job]:
    """Write the jobs unless someone wrote one since it was read (StaleWrite); return them as they are then.

    planned_before: ids of those whose plans are the ones that were read.
    """

    def values(job: Job) -> tuple[Any, ...]:
        plans = (None, None) if job.id in planned_before else PLANS.values(job)
        return (job.id, job.revision, job.config_hash, *plans, *PROGRESS.values(job))

    rows = await conn.fetchmany(SAVE_JOB, [*map(values, jobs)])
    revisions = {row["id"]: row["revision"] for row in rows}
    if stale := [job for job in jobs if job.id not in revisions]:
        raise StaleWrite(f"job {stale[0].id} changed since revision {stale[0].revision}")
    return [replace(job, revision=revisions[job.id]) for job in jobs]


async def save_attempts(conn: Connection, jobs: Sequence[Job]) -> None:
    """Write the present attempt of each job."""
    await conn.executemany(SAVE_ATTEMPT, [(job.id, job.tenant, *ATTEMPT.values(job.present)) for job in jobs])


async def open_jobs(conn: Connection) -> list[OpenJob]:
    """The jobs in states that have a deadline."""
    return [
        OpenJob(JobState(row["state"]), read(Attempt, row), read(Evaluation, row["evaluation"]).gated_at)
        for row in await conn.fetch(OPEN_JOBS)
    ]


async def free_nodes(conn: Connection, attempts: Sequence[FreedNodes]) -> None:
    """Free the nodes of any attempts, whatever the states of their jobs."""
    await conn.executemany(FREE_NODES, attempts)


async def lock_dataset(conn: Connection, dataset_id: str) -> None:
    """A dataset's answer and the submission on it come on two topics."""
    await lock_name(conn, f"scheduler dataset {dataset_id}")


async def lock_slot(conn: Connection, tenant: str, slot: str) -> None:
    """An approval for a slot and serving's answer come on two topics."""
    await lock_name(conn, f"scheduler slot {tenant}/{slot}")


async def find_dataset(conn: Connection, dataset_id: str) -> Dataset | None:
    return (await find_datasets(conn, [dataset_id])).get(dataset_id)


async def find_datasets(conn: Connection, dataset_ids: Collection[str]) -> dict[str, Dataset]:
    rows = await conn.fetch(FIND_DATASETS, [*dataset_ids])
    return {row["dataset_id"]: _dataset(row["facts"]) for row in rows}


async def save_dataset(conn: Connection, dataset: Dataset) -> None:
    await conn.execute(SAVE_DATASET, dataset.dataset_id, dataset.state, to_jsonable_python(dataset))


async def jobs_on_dataset(conn: Connection, dataset_id: str, *, after: str, at_most: int) -> list[Job]:
    """Return jobs on the dataset without an attempt, by id: the others look at it when theirs is over."""
    return await _jobs(conn, await conn.fetch(JOBS_ON_DATASET, dataset_id, after, at_most))


async def save_base_model(conn: Connection, name: str, base: Base) -> None:
    await conn.execute(SAVE_BASE_MODEL, name, *BASE.values(base))


async def find_base(conn: Connection, name: str) -> Base | None:
    """What the name points to until the caller's transaction ends; None where nobody has said."""
    row = await conn.fetchrow(FIND_BASE, name)
    return read(Base, row) if row else None


async def find_other_base(conn: Connection, name: str, base_sha: str) -> Base | None:
    """What the name points to where that is known and not these files; it may change within the transaction."""
    row = await conn.fetchrow(FIND_OTHER_BASE, name, base_sha)
    return read(Base, row) if row else None


async def jobs_on_base(
    conn: Connection, base_model: str, base_sha: str, *, after: str, at_most: int
) -> list[Job]:
    """Return jobs on these files of the base model that are not over, by id."""
    return await _jobs(conn, await conn.fetch(JOBS_ON_BASE, base_sha, after, at_most, base_model))


async def jobs_stale_on_base(
    conn: Connection, base_model: str, base_sha: str, *, after: str, at_most: int
) -> list[Job]:
    """Return those jobs of `jobs_on_base` that know that the name points to other files."""
    return await _jobs(conn, await conn.fetch(JOBS_STALE_ON_BASE, base_sha, after, at_most, base_model))


async def jobs_waiting_for(conn: Connection, deployment: Deployment) -> list[Job]:
    rows = await conn.fetch(JOBS_WAITING_FOR_SLOT, deployment.tenant, deployment.slot)
    return await _jobs(conn, rows)


async def find_duplicate(conn: Connection, job: Job, config_hash: str) -> str | None:
    """The first job of the tenant with that configuration, unless it came to nothing."""
    job_id: str | None = await conn.fetchval(
        FIND_DUPLICATE, job.tenant, config_hash, job.id, job.submitted_at
    )
    return job_id


async def find_deployment(conn: Connection, tenant: str, slot: str) -> Deployment | None:
    row = await conn.fetchrow(FIND_DEPLOYMENT, tenant, slot)
    return read(Deployment, row) if row else None


async def save_deployment(conn: Connection, deployment: Deployment) -> None:
    """Unless a later generation is known."""
    await conn.execute(SAVE_DEPLOYMENT, *DEPLOYMENT.values(deployment))


async def record_ignored(
    conn: Connection, job_id: str, envelope: Envelope, reason: str, *, at: datetime
) -> None:
    await conn.execute(RECORD_IGNORED, job_id, envelope.id, envelope.type, reason, at)


@lru_cache(maxsize=PARSED)
def _spec(text: str) -> JobSpec:
    return JobSpec.model_validate_json(text)


@lru_cache(maxsize=PARSED)
def _dataset(text: str) -> Dataset:
    return DATASET.validate_json(text)


@lru_cache(maxsize=PARSED)
def _plan(text: str) -> Plan:
    return PLAN.validate_json(text)


async def _jobs(conn: Connection, rows: Sequence[Record]) -> list[Job]:
    return [*(await find_jobs(conn, [row["id"] for row in rows])).values()]
