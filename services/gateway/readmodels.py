"""SQL of the read models: what events have told, and what requests ask of it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from schemas.base import Message
from schemas.dataset import SubmitDataset
from schemas.training import StepMetrics
from shared.errors import ParentUnknown, Rejected
from shared.postgres.database import Connection, Database

METRICS = "metrics"
"""What the timeline calls its events with numbers."""

UPSERT_JOB = """
    INSERT INTO job (job_id, tenant) VALUES ($1, $2) ON CONFLICT (job_id) DO NOTHING"""
JOB_COLUMNS = """
    job_id, tenant, phase, spec, dataset_id, dataset_version, config_hash, duplicate_of, retry_of, attempt,
    num_steps, greatest(last_step, last_recorded) AS last_step, trained_tokens, waiting_for, place,
    fine_tuned_model, model_id, is_promoted, is_deployed, ending, warnings,
    error, estimated_memory, preparation, certificate, cost, uncharged_cost, created_at, finished_at,
    ARRAY(SELECT file_id FROM file WHERE file_id = ANY (job.result_files) AND state = 'uploaded') AS result_files,
    (SELECT jsonb_build_object('eval_id', eval_id, 'outcome', outcome, 'reason', reason, 'stages', stages,
                               'progress', progress)
       FROM evaluation WHERE evaluation.job_id = job.job_id
      ORDER BY outcome = 'running', number DESC, created_at DESC LIMIT 1) AS evaluation"""
FIND_JOB = f"SELECT {JOB_COLUMNS} FROM job WHERE job_id = $1 AND tenant = $2"
LIST_JOBS = f"""
    SELECT {JOB_COLUMNS} FROM job
     WHERE tenant = $1 AND ($2::jsonb IS NULL OR spec -> 'metadata' @> $2)
       AND ($3::text IS NULL OR (created_at, job_id) <
            (SELECT created_at, job_id FROM job WHERE job_id = $3 AND tenant = $1))
     ORDER BY created_at DESC, job_id DESC LIMIT $4"""
# Ids of one job's events must become visible in their order, or a reader that resumes after one misses an earlier
# one: of processes that tell of one job at a time, the second waits here for the first to commit.
LOCK_JOB = "SELECT FROM job WHERE job_id = $1 FOR UPDATE"
INSERT_EVENT = """
    INSERT INTO job_event (job_id, tenant, event_id, type, level, message, data, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"""
# Claims have no number: once the inbox has forgotten one, it may come again.
INSERT_METRICS = """
    INSERT INTO job_event (job_id, tenant, event_id, type, level, message, data, created_at)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8
     WHERE NOT EXISTS (SELECT FROM job_event WHERE job_id = $1 AND event_id = $3 AND message = $6)"""
EVENT_COLUMNS = "id, job_id, event_id, type, level, message, data, created_at"
EVENTS_BEFORE = f"""
    SELECT {EVENT_COLUMNS} FROM job_event WHERE job_id = $1 AND ($2::bigint IS NULL OR id < $2)
     ORDER BY id DESC LIMIT $3"""
HAS_EVENT = "SELECT EXISTS (SELECT FROM job_event WHERE job_id = $1 AND id = $2)"
EVENTS_AFTER = f"SELECT {EVENT_COLUMNS} FROM job_event WHERE job_id = $1 AND id > $2 ORDER BY id LIMIT $3"
END_JOB = "INSERT INTO ended_job (job_id, ended_at) VALUES ($1, $2) ON CONFLICT DO NOTHING"
SAVE_CHECKPOINT = """
    INSERT INTO checkpoint (job_id, attempt, step, manifest_sha256, tenant, kind, metrics, state, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    ON CONFLICT (job_id, attempt, step, manifest_sha256) DO UPDATE
       SET kind = CASE WHEN $6 = '' THEN checkpoint.kind ELSE $6 END,
           metrics = checkpoint.metrics || $7,
           state = CASE WHEN $8 = 'written' THEN checkpoint.state ELSE $8 END"""
LIST_CHECKPOINTS = """
    SELECT job_id, attempt, step, manifest_sha256, kind, metrics, state, created_at FROM checkpoint
     WHERE job_id = $1 AND tenant = $2 AND state = 'verified'
       AND ($3::int IS NULL OR (attempt, step) < ($3, $4))
     ORDER BY attempt DESC, step DESC LIMIT $5"""
HAS_CHECKPOINT = """
    SELECT EXISTS (SELECT FROM checkpoint WHERE job_id = $1 AND tenant = $2 AND attempt = $3 AND step = $4)"""
WHOSE_ATTEMPT = "SELECT tenant, attempt FROM job WHERE job_id = $1"
NUM_STEPS = "SELECT num_steps FROM job WHERE job_id = $1"
SAVE_STEP = """
    INSERT INTO step (job_id, step, attempt, metrics) VALUES ($1, $2, $3, $4)
    ON CONFLICT (job_id, step) DO UPDATE SET attempt = $3, metrics = $4 WHERE step.attempt <= $3"""
TOKENS_OF_STEPS = """
    SELECT coalesce(sum((metrics ->> 'num_tokens')::bigint), 0)::bigint FROM step
     WHERE job_id = $1 AND step = ANY ($2::int[])"""
COUNT_STEPS = """
    UPDATE job SET last_recorded = greatest(last_recorded, $2), trained_tokens = coalesce(trained_tokens, 0) + $3
     WHERE job_id = $1"""
LIST_STEPS = "SELECT step, attempt, metrics FROM step WHERE job_id = $1 AND step > $2 ORDER BY step LIMIT $3"
# Of several attempts that came to a step, the last one's numbers, as for the step itself.
LIST_STEPS_WITH_VALIDATION = """
    SELECT step, step.attempt, step.metrics, measured.metrics AS measured
      FROM step LEFT JOIN LATERAL (
           SELECT metrics FROM checkpoint WHERE checkpoint.job_id = step.job_id AND checkpoint.step = step.step
            ORDER BY checkpoint.attempt DESC LIMIT 1) AS measured ON true
     WHERE step.job_id = $1 AND step > $2 ORDER BY step LIMIT $3"""
STEPS_OF_JOB = """
    SELECT coalesce(last_step, 0) AS last_step, cardinality(result_files) > 0 AS has_results,
           last_recorded
      FROM job WHERE job_id = $1"""
SAVE_DATASET = """
    INSERT INTO dataset (dataset_id, tenant, state, dataset_version, detail) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (dataset_id) DO UPDATE SET state = $3,
        dataset_version = coalesce($4, dataset.dataset_version), detail = dataset.detail || $5
     WHERE dataset.tenant = $2"""
NOTE_DATASET = """
    INSERT INTO dataset (dataset_id, tenant, state, files, policy) VALUES ($1, $2, 'validating', $3, $4)
    ON CONFLICT (dataset_id) DO UPDATE SET files = $3, policy = $4
     WHERE dataset.tenant = $2 AND dataset.files = '{}'"""
REFUSE_DATASET = """
    INSERT INTO dataset (dataset_id, tenant, state, detail) VALUES ($1, $2, 'rejected', $3)
    ON CONFLICT (dataset_id) DO UPDATE SET state = 'rejected', detail = dataset.detail || $3
     WHERE dataset.tenant = $2 AND dataset.state = 'validating'"""
SAVE_ANSWER = "UPDATE dataset SET answer = $3 WHERE dataset_id = $1 AND tenant = $2"
FIND_ANSWER = "SELECT answer FROM dataset WHERE dataset_id = $1 AND tenant = $2"
DELAY_JOBS = """
    UPDATE job SET waiting_for = $3
     WHERE (job_id = $1 OR dataset_id = $1) AND tenant = $2 AND phase IN ('validating', 'evaluating')"""
GO_ON = "UPDATE job SET waiting_for = '' WHERE job_id = $1 AND tenant = $2 AND waiting_for <> ''"
ADD_MODEL_OF_JOB = """
    UPDATE job SET fine_tuned_model = $3, model_id = $4
     WHERE job_id = $1 AND tenant = $2 AND phase = 'succeeded' AND fine_tuned_model IS NULL"""
JOBS_OF_DATASET = "SELECT job_id FROM job WHERE dataset_id = $1 AND tenant = $2 ORDER BY job_id"
TENANT_OF_DATASET = "SELECT tenant FROM dataset WHERE dataset_id = $1"
POLICY_OF_DATASET = "SELECT policy FROM dataset WHERE dataset_id = $1 AND tenant = $2"
FIND_DATASET = """
    SELECT dataset_id, tenant, state, dataset_version, detail, created_at FROM dataset
     WHERE dataset_id = $1 AND tenant = $2"""
SAVE_SUITE = """
    INSERT INTO suite (name, is_benchmark, digest, rows, detail, registered_at, file_id, sha256, examples_file_id,
                       examples_sha256)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (name, is_benchmark) DO UPDATE
       SET digest = $3, rows = $4, detail = suite.detail || $5, registered_at = $6, file_id = $7, sha256 = $8,
           examples_file_id = $9, examples_sha256 = $10
     WHERE suite.registered_at <= $6"""
LIST_SUITES = """
    SELECT name, is_benchmark, digest, rows, detail, registered_at FROM suite ORDER BY is_benchmark DESC, name"""
SAVE_POLICY = """
    INSERT INTO gate_policy (detail) VALUES ($1) ON CONFLICT (singleton) DO UPDATE SET detail = $1"""
FIND_POLICY = "SELECT detail FROM gate_policy"
WARN_JOBS_ON_BASE = """
    UPDATE job SET warnings = warnings || $2::jsonb
     WHERE spec ->> 'base_sha' = $1 AND phase NOT IN ('succeeded', 'failed', 'cancelled')
    RETURNING job_id, tenant"""
SAVE_BASE = """
    INSERT INTO base_model (name, base_sha, detail, registered_at) VALUES ($1, $2, $3, $4)
    ON CONFLICT (name) DO UPDATE SET base_sha = $2, detail = $3, registered_at = $4"""
FIND_BASE_DETAIL = "SELECT detail FROM base_model WHERE name = $1 AND base_sha = $2"
BASE_COLUMNS = "name, base_sha, detail, registered_at"
LIST_BASES = f"SELECT {BASE_COLUMNS} FROM base_model WHERE name > $1 ORDER BY name LIMIT $2"
FIND_BASE = f"SELECT {BASE_COLUMNS} FROM base_model WHERE name = $1"
SAVE_MODEL = """
    INSERT INTO model (model_id, tenant, full_name, digest, job_id, base_model, base_sha, dataset_version, stage,
                       detail, created_at, is_stale)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
            EXISTS (SELECT FROM base_model WHERE name = $6 AND base_sha <> $7))
    ON CONFLICT (model_id) DO NOTHING"""
SET_STAGE = "UPDATE model SET stage = $2, eval_id = coalesce($3, eval_id) WHERE model_id = $1"
SET_STALE = "UPDATE model SET is_stale = (base_sha <> $2) WHERE base_model = $1"
SET_APPROVAL = """
    UPDATE model SET has_holdout = $2, approved_by = $3, approval_reason = $4, accepted_without_holdout = $5
     WHERE model_id = $1"""
VOID_APPROVAL = """
    UPDATE model SET approved_by = NULL, approval_reason = '', accepted_without_holdout = false WHERE model_id = $1"""
MODEL_COLUMNS = """
    model_id, tenant, full_name, digest, job_id, base_model, base_sha, dataset_version, stage, eval_id, is_stale,
    has_holdout, approved_by, approval_reason, accepted_without_holdout, detail, created_at"""
LIST_MODELS = f"""
    SELECT {MODEL_COLUMNS} FROM model
     WHERE tenant = $1 AND ($2::text IS NULL OR base_model = $2) AND ($3::text IS NULL OR dataset_version = $3)
       AND ($4::text IS NULL OR base_sha = $4)
       AND ($5::text IS NULL OR (created_at, model_id) <
            (SELECT created_at, model_id FROM model WHERE model_id = $5 AND tenant = $1))
     ORDER BY created_at DESC, model_id DESC LIMIT $6"""
VERSIONS_NAMED = "SELECT model_id FROM model WHERE tenant = $1 AND (model_id = $2 OR full_name = $2) LIMIT 2"
FIND_MODEL = f"""
    SELECT {MODEL_COLUMNS} FROM model WHERE tenant = $1 AND (model_id = $2 OR full_name = $2)
     ORDER BY created_at DESC LIMIT 1"""
SAVE_EVALUATION = """
    INSERT INTO evaluation (eval_id, tenant, job_id, model_id, outcome, reason, stages, number, evidence, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (eval_id) DO UPDATE SET outcome = $5, reason = $6, stages = $7, evidence = $9, progress = NULL"""
SAVE_EVAL_PROGRESS = "UPDATE evaluation SET progress = $2 WHERE eval_id = $1 AND outcome = 'running'"
EVALUATION_COLUMNS = """
    eval_id, tenant, job_id, model_id, outcome, reason, stages, number, evidence, progress, created_at"""
FIND_EVALUATION = f"""
    SELECT {EVALUATION_COLUMNS} FROM evaluation
     WHERE model_id = $1 ORDER BY number DESC, created_at DESC LIMIT 1"""
GET_EVALUATION = f"SELECT {EVALUATION_COLUMNS} FROM evaluation WHERE eval_id = $1"
SAVE_REPLICA = """
    INSERT INTO replica (replica_id, incarnation, pool, base_model, base_sha, served_base, url, is_ready)
    VALUES ($1, $2, $3, $4, $5, $6, $7, true)
    ON CONFLICT (replica_id) DO UPDATE SET incarnation = $2, served_base = $6, url = $7, is_ready = true"""
LOSE_REPLICA = "UPDATE replica SET is_ready = false WHERE replica_id = $1 AND incarnation = $2"
# What is wanted and what is so come on two topics, in any order: of one generation, the latter stays.
SAVE_ROUTE = """
    INSERT INTO route (tenant, slot, generation, model_id, digest, state, reason, served_name, replicas, updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (tenant, slot) DO UPDATE SET generation = $3, model_id = $4, digest = $5, state = $6, reason = $7,
        served_name = CASE WHEN $8 = '' THEN route.served_name ELSE $8 END,
        replicas = CASE WHEN $6 IN ('pending', 'failed') THEN route.replicas ELSE $9 END, updated_at = $10
     WHERE route.generation < $3
        OR (route.generation = $3 AND $6 NOT IN ('pending', 'withdrawn'))"""
ROUTE_COLUMNS = "tenant, slot, generation, model_id, digest, state, reason, served_name, replicas, updated_at"
FIND_ROUTE = f"SELECT {ROUTE_COLUMNS} FROM route WHERE tenant = $1 AND slot = $2"
IS_ROUTE_EXPECTED = """
    SELECT EXISTS (SELECT FROM route WHERE tenant = $1 AND slot = $2 AND state = 'pending')
        OR (EXISTS (SELECT FROM job WHERE tenant = $1 AND fine_tuned_model = $2 AND is_deployed)
            AND NOT EXISTS (SELECT FROM route WHERE tenant = $1 AND slot = $2))"""
IS_ROUTE_IDLE = """
    SELECT EXISTS (SELECT FROM route WHERE tenant = $1 AND slot = $2 AND state = 'ready' AND replicas = '[]')"""
LIST_ROUTES = f"SELECT {ROUTE_COLUMNS} FROM route WHERE tenant = $1 AND slot > $2 ORDER BY slot LIMIT $3"
READY_REPLICAS_OF_BASE = """
    SELECT replica_id, incarnation, url, served_base FROM replica
     WHERE base_model = $1 AND is_ready AND base_sha = (SELECT base_sha FROM base_model WHERE name = $1)"""
TEMPLATE_OF_ROUTE = """
    SELECT b.detail ->> 'template_sha256' FROM route r JOIN model m USING (model_id)
      JOIN base_model b ON b.name = m.base_model WHERE r.tenant = $1 AND r.slot = $2"""
TEMPLATE_OF_BASE = "SELECT detail ->> 'template_sha256' FROM base_model WHERE name = $1"
READY_INCARNATIONS = "SELECT replica_id, incarnation FROM replica WHERE is_ready"
SAVE_POOL = """
    INSERT INTO pool (name, detail) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET detail = $2"""
LIST_POOLS = "SELECT name, detail FROM pool ORDER BY name"
SAVE_OUTCOME = """
    INSERT INTO outcome (causation_id, event_type, payload) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"""
SAVE_KAFKA_USER = """
    INSERT INTO kafka_user (name, tenant, reads, writes, group_prefix, changed_at) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (name) DO UPDATE SET reads = $3, writes = $4, group_prefix = $5, changed_at = $6"""
REMOVE_KAFKA_USER = "DELETE FROM kafka_user WHERE name = $1"
LIST_KAFKA_USERS = """
    SELECT name, tenant, reads, writes, group_prefix, changed_at FROM kafka_user
     WHERE name > $1 ORDER BY name LIMIT $2"""
FIND_OUTCOME = "SELECT event_type, payload FROM outcome WHERE causation_id = $1"
ADD_REFUSAL = """
    INSERT INTO refusal (tenant, command_id, command, subject_id, code, message, param, refused_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"""
REFUSAL_COLUMNS = "id, command_id, command, subject_id, code, message, param, refused_at"
LIST_REFUSALS = f"""
    SELECT {REFUSAL_COLUMNS} FROM refusal WHERE tenant = $1 AND ($2::bigint IS NULL OR id < $2)
     ORDER BY id DESC LIMIT $3"""
HAS_REFUSAL = "SELECT EXISTS (SELECT FROM refusal WHERE tenant = $1 AND id = $2)"


async def update_job(conn: Connection, job_id: str, tenant: str, **changes: Any) -> None:
    """Set columns of a job, which need not be known yet: topics come in any order."""
    await conn.execute(UPSERT_JOB, job_id, tenant)
    if changes:
        columns = ", ".join(f"{name} = ${number}" for number, name in enumerate(changes, 3))
        await conn.execute(
            f"UPDATE job SET {columns} WHERE job_id = $1 AND tenant = $2", job_id, tenant, *changes.values()
        )


def attempt_name(job_id: str, attempt: int) -> str:
    """What the steps of an attempt wait for until it was scheduled."""
    return f"attempt:{job_id}/{attempt}"


async def require_attempt(conn: Connection, job_id: str, tenant: str, attempt: int) -> None:
    """Raises ParentUnknown before the attempt was scheduled, Rejected where the job is another tenant's."""
    row = await conn.fetchrow(WHOSE_ATTEMPT, job_id)
    if row is None or (row["attempt"] or 0) < attempt:
        raise ParentUnknown(attempt_name(job_id, attempt))
    if row["tenant"] != tenant:
        raise Rejected(f"{job_id} is of tenant {row['tenant']}, found {tenant}")


async def save_steps(conn: Connection, job_id: str, attempt: int, steps: Sequence[StepMetrics]) -> None:
    """Of several attempts that came to a step, the last one's numbers count."""
    numbers = [step.step for step in steps]
    rows = [(job_id, step.step, attempt, step.model_dump(mode="json", exclude={"step"})) for step in steps]
    await conn.execute(LOCK_JOB, job_id)
    before = await conn.fetchval(TOKENS_OF_STEPS, job_id, numbers)
    await conn.executemany(SAVE_STEP, rows)
    added = await conn.fetchval(TOKENS_OF_STEPS, job_id, numbers) - before
    await conn.execute(COUNT_STEPS, job_id, max(numbers, default=0), added)


async def end_job(conn: Connection, job_id: str, *, at: datetime) -> None:
    """From now on its history is kept for so long."""
    await conn.execute(END_JOB, job_id, at)


async def note_dataset(conn: Connection, command: SubmitDataset) -> None:
    """Show the dataset before ingest has accepted it, keep the bytes that it is made of, and its policy."""
    spec = command.spec
    mix = spec.safety_mix.file if spec.safety_mix else None
    named = (spec.training_file, spec.validation_file, spec.holdout, mix)
    files = [file.sha256 for file in named if file]
    policy = spec.policy.model_dump(mode="json")
    await conn.execute(NOTE_DATASET, command.dataset_id, command.tenant, files, policy)


async def find_job(conn: Connection | Database, job_id: str, tenant: str) -> Any:
    return await conn.fetchrow(FIND_JOB, job_id, tenant)


async def list_jobs(
    database: Database, tenant: str, *, metadata: dict[str, str] | None, after: str | None, limit: int
) -> list[Any]:
    return await database.fetch(LIST_JOBS, tenant, metadata, after, limit)


async def add_event(
    conn: Connection,
    job_id: str,
    tenant: str,
    event_id: str,
    event: Message,
    level_and_message: tuple[str, str],
    at: datetime,
) -> None:
    data = event.model_dump(mode="json")
    await conn.execute(LOCK_JOB, job_id)
    await conn.execute(INSERT_EVENT, job_id, tenant, event_id, event.type, *level_and_message, data, at)


async def add_warnings(
    conn: Connection,
    job_id: str,
    tenant: str,
    event_id: str,
    warnings: Sequence[Mapping[str, str]],
    at: datetime,
) -> None:
    """Show them in the job's timeline, as following from the event."""
    await conn.execute(LOCK_JOB, job_id)
    for warning in warnings:
        values = (job_id, tenant, event_id, "JobWarned", "warn", warning["message"], dict(warning), at)
        await conn.execute(INSERT_EVENT, *values)


async def add_metrics(
    conn: Connection,
    job_id: str,
    tenant: str,
    event_id: str,
    message: str,
    data: Mapping[str, Any],
    at: datetime,
) -> None:
    """Numbers in the job's timeline, from the event."""
    await conn.execute(LOCK_JOB, job_id)
    values = (job_id, tenant, event_id, METRICS, "info", message, dict(data), at)
    await conn.execute(INSERT_METRICS, *values)


async def events_before(database: Database, job_id: str, *, before: int | None, limit: int) -> list[Any]:
    return await database.fetch(EVENTS_BEFORE, job_id, before, limit)


async def events_after(database: Database, job_id: str, *, after: int, limit: int = 200) -> list[Any]:
    return await database.fetch(EVENTS_AFTER, job_id, after, limit)


async def find_outcome(database: Database, causation_id: str) -> Any:
    return await database.fetchrow(FIND_OUTCOME, causation_id)


async def find_model(conn: Connection | Database, tenant: str, name: str) -> Any:
    return await conn.fetchrow(FIND_MODEL, tenant, name)


async def find_evaluation(database: Database, model_id: str) -> Any:
    return await database.fetchrow(FIND_EVALUATION, model_id)


async def get_evaluation(database: Database, eval_id: str) -> Any:
    return await database.fetchrow(GET_EVALUATION, eval_id)
