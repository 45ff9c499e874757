"""The scheduler's SQL: one function per question. Only this file and `queue_store.py` know column names."""

from collections.abc import Sequence
from datetime import datetime

from asyncpg import Record
from pydantic import TypeAdapter

from schemas.base import BundleRef, CapacityType, DeviceKind, FailureClass
from schemas.capabilities import BaseCapabilities
from schemas.envelope import Envelope
from schemas.specification import JobSpec
from services.scheduler.decide.overdue import Phase
from services.scheduler.model import (
    Attempt,
    Base,
    Dataset,
    Deployment,
    Evaluation,
    Facts,
    Job,
    JobState,
    Placement,
    Plan,
    Stop,
)
from shared.errors import ParentUnknown, StaleWrite
from shared.postgres.database import Connection, lock_name

SPEC = TypeAdapter(JobSpec)
PLAN: TypeAdapter[Plan | None] = TypeAdapter(Plan | None)
BUNDLES = TypeAdapter(frozenset[BundleRef])
BUNDLE: TypeAdapter[BundleRef | None] = TypeAdapter(BundleRef | None)
TIMES_BY_POOL = TypeAdapter(dict[str, datetime])
REQUEUES = TypeAdapter(dict[FailureClass, int])
TIMES = TypeAdapter(tuple[datetime, ...])
EVALUATION = TypeAdapter(Evaluation)
FACTS = TypeAdapter(Facts)
STOP: TypeAdapter[Stop | None] = TypeAdapter(Stop | None)
DATASET = TypeAdapter(Dataset)

# The joined rows are read by their own statements: after a wait for the lock, a join would still show the
# attempt as it was before.
FIND_JOB = """
    SELECT id, tenant, state, revision, spec, dataset_id, submitted_at, retry_of, plan, attempt, verified,
           corrupt, queued_at, not_before, turned_away, requeues, preempted_at, evaluation
      FROM job WHERE id = $1 FOR UPDATE"""
LOCK_QUEUED_JOB = "SELECT id FROM job WHERE id = $1 AND state = 'queued' FOR UPDATE SKIP LOCKED"

FIND_ATTEMPT = """
    SELECT number, pool, capacity_type, nodes, devices_per_node, device, resume, scheduled_at, start_deadline,
           ends_by, facts, stop
      FROM attempt WHERE job_id = $1 AND number = $2"""

ADD_JOB = """
    INSERT INTO job (id, tenant, state, spec, base_sha, dataset_id, submitted_at, retry_of,
                     verified, corrupt, turned_away, requeues, preempted_at, evaluation)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, '[]', '[]', '{}', '{}', '[]', '{}')"""

SAVE_JOB = """
    UPDATE job SET state = $3, plan = $4, config_hash = $5, attempt = $6, verified = $7, corrupt = $8,
                   queued_at = $9, not_before = $10, turned_away = $11, requeues = $12, preempted_at = $13,
                   evaluation = $14, revision = revision + 1
     WHERE id = $1 AND revision = $2 RETURNING revision"""

SAVE_ATTEMPT = """
    INSERT INTO attempt (job_id, number, pool, capacity_type, nodes, devices_per_node, resume, scheduled_at,
                         start_deadline, facts, stop, tenant, device, ends_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
    ON CONFLICT (job_id, number) DO UPDATE SET facts = $10, stop = $11"""

# The index job_under_way has the jobs in these states and no other.
PHASES = """
    SELECT job.state, job.evaluation, number, pool, capacity_type, nodes, devices_per_node, device, resume,
           scheduled_at, start_deadline, ends_by, facts, stop
      FROM job JOIN attempt ON attempt.job_id = job.id AND attempt.number = job.attempt
     WHERE job.state IN ('provisioning', 'running', 'stopping', 'evaluating')"""

FREE_NODES = "UPDATE attempt SET freed_at = coalesce(freed_at, $3) WHERE job_id = $1 AND number = $2"

FIND_DATASET = "SELECT facts FROM dataset WHERE dataset_id = $1"
SAVE_DATASET = """
    INSERT INTO dataset (dataset_id, state, facts) VALUES ($1, $2, $3)
    ON CONFLICT (dataset_id) DO UPDATE SET state = $2, facts = $3"""

JOBS_ON_DATASET = """
    SELECT id FROM job WHERE dataset_id = $1 AND state IN ('validating', 'queued', 'paused') ORDER BY id"""
JOBS_ON_BASE = """
    SELECT id FROM job WHERE base_sha = $1 AND state NOT IN ('succeeded', 'failed', 'cancelled') ORDER BY id"""
JOBS_STALE_ON_BASE = """
    SELECT id FROM job WHERE base_sha = $1 AND state NOT IN ('succeeded', 'failed', 'cancelled')
       AND evaluation -> 'denial' ->> 'stale_base' = 'true' ORDER BY id"""
SAVE_BASE_MODEL = """
    INSERT INTO base_model (name, base_sha, capabilities) VALUES ($1, $2, $3)
    ON CONFLICT (name) DO UPDATE SET base_sha = $2, capabilities = $3"""
FIND_BASE = "SELECT base_sha, capabilities FROM base_model WHERE name = $1 FOR SHARE"
JOBS_WAITING_FOR_SLOT = """
    SELECT id FROM job WHERE state = 'evaluating' AND tenant = $1 AND evaluation -> 'approval' ->> 'slot' = $2
     ORDER BY id"""

FIND_DUPLICATE = """
    SELECT id FROM job
     WHERE tenant = $1 AND config_hash = $2 AND id <> $3 AND submitted_at <= $4
       AND state NOT IN ('failed', 'cancelled')
     ORDER BY submitted_at, id LIMIT 1"""

FIND_DEPLOYMENT = """
    SELECT tenant, slot, generation, is_ready, message FROM deployment WHERE tenant = $1 AND slot = $2"""
SAVE_DEPLOYMENT = """
    INSERT INTO deployment AS known (tenant, slot, generation, is_ready, message) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (tenant, slot) DO UPDATE SET generation = $3, is_ready = $4, message = $5
     WHERE known.generation <= $3"""

PRUNE_IGNORED = """
    DELETE FROM ignored WHERE id = ANY(ARRAY(SELECT id FROM ignored WHERE at < now() - $1::interval LIMIT $2))"""
# Of jobs that are over: an open one still looks at its last.
PRUNE_ATTEMPTS = """
    DELETE FROM attempt WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM attempt
         WHERE freed_at < now() - $1::interval
           AND (SELECT state FROM job WHERE id = job_id) IN ('succeeded', 'failed', 'cancelled') LIMIT $2))"""
RECORD_IGNORED = "INSERT INTO ignored (job_id, event_id, type, reason, at) VALUES ($1, $2, $3, $4, $5)"


async def get_job(conn: Connection, job_id: str) -> Job:
    """Locks the job. A fact about a job that is not known (yet) waits for it."""
    job = await find_job(conn, job_id)
    if job is None:
        raise ParentUnknown(f"job:{job_id}")
    return job


async def find_job(conn: Connection, job_id: str) -> Job | None:
    """Locks the job."""
    row = await conn.fetchrow(FIND_JOB, job_id)
    return await _whole(conn, row) if row else None


async def find_queued_job(conn: Connection, job_id: str) -> Job | None:
    """Locks the job; None if it is not queued any more or somebody else is at it."""
    locked = await conn.fetchval(LOCK_QUEUED_JOB, job_id)
    return await find_job(conn, job_id) if locked else None


async def add_job(conn: Connection, job: Job) -> None:
    """A new job, of which nothing is known but its submission."""
    await conn.execute(
        ADD_JOB,
        job.id,
        job.tenant,
        job.state,
        SPEC.dump_python(job.spec, mode="json"),
        job.spec.base_sha,
        job.dataset_id,
        job.submitted_at,
        job.retry_of,
    )


async def save_job(conn: Connection, job: Job) -> None:
    """Write `job` and its present attempt unless someone wrote it since it was read (StaleWrite)."""
    revision = await conn.fetchval(
        SAVE_JOB,
        job.id,
        job.revision,
        job.state,
        PLAN.dump_python(job.plan, mode="json"),
        job.plan.config_hash if job.plan else None,
        job.attempt,
        BUNDLES.dump_python(job.verified, mode="json"),
        BUNDLES.dump_python(job.corrupt, mode="json"),
        job.queued_at,
        job.not_before,
        TIMES_BY_POOL.dump_python(dict(job.turned_away), mode="json"),
        REQUEUES.dump_python(dict(job.requeues), mode="json"),
        TIMES.dump_python(job.preempted_at, mode="json"),
        EVALUATION.dump_python(job.evaluation, mode="json"),
    )
    if revision is None:
        raise StaleWrite(f"job {job.id} changed since revision {job.revision}")
    if job.run is not None:
        await _save_attempt(conn, job, job.run)


async def _save_attempt(conn: Connection, job: Job, run: Attempt) -> None:
    await conn.execute(
        SAVE_ATTEMPT,
        job.id,
        run.number,
        run.placement.pool,
        run.placement.capacity_type,
        run.placement.nodes,
        run.placement.devices_per_node,
        BUNDLE.dump_python(run.resume, mode="json"),
        run.scheduled_at,
        run.start_deadline,
        FACTS.dump_python(run.facts, mode="json"),
        STOP.dump_python(run.stop, mode="json"),
        job.tenant,
        run.placement.device,
        run.ends_by,
    )


async def phases(conn: Connection) -> list[Phase]:
    """Of every job in a phase that has a deadline."""
    return [
        Phase(JobState(row["state"]), _attempt(row), EVALUATION.validate_python(row["evaluation"]).gated_at)
        for row in await conn.fetch(PHASES)
    ]


async def free_nodes(conn: Connection, job_id: str, attempt: int, *, at: datetime) -> None:
    """Of any attempt, whatever the job's state."""
    await conn.execute(FREE_NODES, job_id, attempt, at)


async def lock_dataset(conn: Connection, dataset_id: str) -> None:
    """A dataset's answer and the submission on it come on two topics."""
    await lock_name(conn, f"scheduler dataset {dataset_id}")


async def lock_slot(conn: Connection, tenant: str, slot: str) -> None:
    """An approval for a slot and serving's answer come on two topics."""
    await lock_name(conn, f"scheduler slot {tenant}/{slot}")


async def find_dataset(conn: Connection, dataset_id: str) -> Dataset | None:
    facts = await conn.fetchval(FIND_DATASET, dataset_id)
    return DATASET.validate_python(facts) if facts else None


async def save_dataset(conn: Connection, dataset: Dataset) -> None:
    facts = DATASET.dump_python(dataset, mode="json")
    await conn.execute(SAVE_DATASET, dataset.dataset_id, dataset.state, facts)


async def jobs_on_dataset(conn: Connection, dataset_id: str) -> list[Job]:
    """Those without an attempt: the others look at the dataset when theirs is over."""
    return await _jobs(conn, await conn.fetch(JOBS_ON_DATASET, dataset_id))


async def save_base_model(conn: Connection, name: str, base: Base) -> None:
    capabilities = None if base.capabilities is None else base.capabilities.model_dump(mode="json")
    await conn.execute(SAVE_BASE_MODEL, name, base.sha, capabilities)


async def find_base(conn: Connection, name: str) -> Base | None:
    """What the name points to until the caller's transaction ends; None where nobody has said."""
    row = await conn.fetchrow(FIND_BASE, name)
    if row is None:
        return None
    capabilities = row["capabilities"]
    return Base(
        row["base_sha"], None if capabilities is None else BaseCapabilities.model_validate(capabilities)
    )


async def jobs_on_base(conn: Connection, base_sha: str) -> list[Job]:
    """Those that are not over."""
    return await _jobs(conn, await conn.fetch(JOBS_ON_BASE, base_sha))


async def jobs_stale_on_base(conn: Connection, base_sha: str) -> list[Job]:
    """Those that were told that the name points to other files."""
    return await _jobs(conn, await conn.fetch(JOBS_STALE_ON_BASE, base_sha))


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
    return Deployment(**row) if row else None


async def save_deployment(conn: Connection, deployment: Deployment) -> None:
    """Unless a later generation is known."""
    await conn.execute(
        SAVE_DEPLOYMENT,
        deployment.tenant,
        deployment.slot,
        deployment.generation,
        deployment.is_ready,
        deployment.message,
    )


async def record_ignored(
    conn: Connection, job_id: str, envelope: Envelope | None, reason: str, *, at: datetime
) -> None:
    assert envelope is not None, f"job {job_id}: only messages are recorded as ignored"
    await conn.execute(RECORD_IGNORED, job_id, envelope.id, envelope.type, reason, at)


async def _jobs(conn: Connection, rows: Sequence[Record]) -> list[Job]:
    return [await get_job(conn, row["id"]) for row in rows]


async def _whole(conn: Connection, row: Record) -> Job:
    attempt = await conn.fetchrow(FIND_ATTEMPT, row["id"], row["attempt"])
    return Job(
        id=row["id"],
        tenant=row["tenant"],
        state=JobState(row["state"]),
        spec=SPEC.validate_python(row["spec"]),
        dataset_id=row["dataset_id"],
        submitted_at=row["submitted_at"],
        retry_of=row["retry_of"],
        dataset=await find_dataset(conn, row["dataset_id"]),
        plan=PLAN.validate_python(row["plan"]),
        run=_attempt(attempt) if attempt else None,
        verified=BUNDLES.validate_python(row["verified"]),
        corrupt=BUNDLES.validate_python(row["corrupt"]),
        queued_at=row["queued_at"],
        not_before=row["not_before"],
        turned_away=TIMES_BY_POOL.validate_python(row["turned_away"]),
        requeues=REQUEUES.validate_python(row["requeues"]),
        preempted_at=TIMES.validate_python(row["preempted_at"]),
        evaluation=EVALUATION.validate_python(row["evaluation"]),
        revision=row["revision"],
    )


def device_of(row: Record) -> DeviceKind | None:
    return None if row["device"] is None else DeviceKind(row["device"])


def _attempt(row: Record) -> Attempt:
    return Attempt(
        number=row["number"],
        placement=Placement(
            row["pool"],
            CapacityType(row["capacity_type"]),
            row["nodes"],
            row["devices_per_node"],
            device_of(row),
        ),
        resume=BUNDLE.validate_python(row["resume"]),
        scheduled_at=row["scheduled_at"],
        start_deadline=row["start_deadline"],
        ends_by=row["ends_by"],
        facts=FACTS.validate_python(row["facts"]),
        stop=STOP.validate_python(row["stop"]),
    )
