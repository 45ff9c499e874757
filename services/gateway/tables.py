"""What is written to the read models: tables by their keys, and statements for what no key names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

from pydantic import BaseModel

from schemas.base import CommandRefused, Delayed, Message
from schemas.cost import CostAccrued
from schemas.dataset import SubmitDataset
from schemas.evaluation import GatePolicyPublished
from schemas.node import AllocatedNode, key_of_first
from schemas.specification import DatasetSpec
from schemas.training import StepMetrics, StepValidated
from services.gateway.model import (
    METRICS,
    DatasetAnswer,
    JobCourse,
    JobOwner,
    JobWarning,
    JsonObject,
    SubmittedSpec,
)
from services.gateway.store import columns, find
from shared.errors import ParentUnknown, Rejected
from shared.messaging.unit import Unit
from shared.postgres.database import Connection

# Ids of one job's events must become visible in their order, or a reader that resumes after one misses an earlier
# one: of processes that write of one job at a time, the second waits here for the first to commit.
LOCK_JOB = "SELECT FROM job WHERE job_id = $1 FOR UPDATE"
INSERT_EVENT = """
    INSERT INTO job_event (job_id, tenant, event_id, type, level, message, data, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"""
# Claims have no number: once the inbox has forgotten one, it may come again.
INSERT_METRICS = """
    INSERT INTO job_event (job_id, tenant, event_id, type, level, message, data, created_at)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8
     WHERE NOT EXISTS (SELECT FROM job_event WHERE job_id = $1 AND event_id = $3 AND message = $6)"""
END_JOB = "INSERT INTO ended_job (job_id, ended_at) VALUES ($1, $2) ON CONFLICT DO NOTHING"
WHOSE_ATTEMPT = f"SELECT {columns(JobOwner)} FROM job WHERE job_id = $1"
FIND_COURSE = f"SELECT {columns(JobCourse)} FROM job WHERE job_id = $1"
# An index holds these events of all jobs, and nothing else.
NODES_OF_ATTEMPT = """
    SELECT data -> 'nodes' FROM job_event
     WHERE job_id = $1 AND type = 'NodesProvisioned' AND (data ->> 'attempt')::int = $2 LIMIT 1"""
SAVE_STEP = """
    INSERT INTO step (job_id, step, attempt, first_attempt, metrics) VALUES ($1, $2, $3, $3, $4)
    ON CONFLICT (job_id, step) DO UPDATE SET attempt = $3, metrics = $4 WHERE step.attempt <= $3"""
SAVE_VALIDATION = "UPDATE step SET validation = $4 WHERE job_id = $1 AND step = $2 AND attempt <= $3"
TOKENS_OF_STEPS = """
    SELECT coalesce(sum((metrics ->> 'num_tokens')::bigint), 0)::bigint FROM step
     WHERE job_id = $1 AND step = ANY ($2::int[])"""
COUNT_STEPS = """
    UPDATE job SET last_recorded = greatest(last_recorded, $2), trained_tokens = coalesce(trained_tokens, 0) + $3
     WHERE job_id = $1"""
NOTE_DATASET = """
    INSERT INTO dataset (dataset_id, tenant, state, files, policy) VALUES ($1, $2, 'validating', $3, $4)
    ON CONFLICT (dataset_id) DO UPDATE SET files = $3, policy = $4
     WHERE dataset.tenant = $2 AND dataset.files = '{}'"""
REFUSE_DATASET = """
    INSERT INTO dataset (dataset_id, tenant, state, detail) VALUES ($1, $2, 'rejected', $3)
    ON CONFLICT (dataset_id) DO UPDATE SET state = 'rejected', detail = dataset.detail || $3
     WHERE dataset.tenant = $2 AND dataset.state = 'validating'"""
REFUSE_SWEEP = """
    UPDATE sweep SET state = 'failed', message = $3, finished_at = $4
     WHERE sweep_id = $1 AND tenant = $2 AND state = 'running'"""
SAVE_COST = """
    INSERT INTO attempt_cost (job_id, attempt, tenant, pool, capacity_type, node_seconds, device_seconds, cost,
                              charged, failure_class, ended_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (job_id, attempt) DO NOTHING"""
SAVE_ANSWER = "UPDATE dataset SET answer = $3 WHERE dataset_id = $1 AND tenant = $2"
DELAY_JOBS = """
    UPDATE job SET waiting_for = $3
     WHERE (job_id = $1 OR dataset_id = $1) AND tenant = $2 AND state IN ('validating', 'evaluating')"""
WAIT_AT_BACKEND = """
    UPDATE job SET waiting_for = $3 WHERE job_id = $1 AND attempt = $2 AND state = 'provisioning'"""
CLEAR_WAITING = "UPDATE job SET waiting_for = '' WHERE job_id = $1 AND tenant = $2 AND waiting_for <> ''"
ADD_MODEL_OF_JOB = """
    UPDATE job SET fine_tuned_model = $3, model_id = $4
     WHERE job_id = $1 AND tenant = $2 AND state = 'succeeded' AND fine_tuned_model IS NULL"""
SAVE_POLICY = """
    INSERT INTO gate_policy (detail) VALUES ($1) ON CONFLICT (singleton) DO UPDATE SET detail = $1"""
# One statement, however many they are: one for each would come to the limit of a transaction.
WARN_JOBS_ON_BASE = """
    WITH warned AS (
        UPDATE job SET warnings = warnings || jsonb_build_array($4::jsonb)
         WHERE spec ->> 'base_sha' = $2 AND spec ->> 'base_model' = $1
           AND state NOT IN ('succeeded', 'failed', 'cancelled')
        RETURNING job_id, tenant)
    INSERT INTO job_event (job_id, tenant, event_id, type, level, message, data, created_at)
    SELECT job_id, tenant, $3, 'JobWarned', 'warn', $4::jsonb ->> 'message', $4, $5 FROM warned ORDER BY job_id"""
SET_STALE = "UPDATE model SET is_stale = (base_sha <> $2) WHERE base_model = $1"
SAVE_OUTCOME = """
    INSERT INTO outcome (causation_id, event_type, payload) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"""
REMOVE_KAFKA_USER = "DELETE FROM kafka_user WHERE name = $1"
ADD_REFUSAL = """
    INSERT INTO refusal (tenant, command_id, command, subject_id, code, message, param, refused_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"""
COMPARE_WITH_BASE = """
    UPDATE model SET is_stale = true FROM base_model
     WHERE model_id = $1 AND base_model.name = model.base_model AND base_model.base_sha <> model.base_sha"""


@dataclass(frozen=True)
class Table:
    """A table that is written by key; the row of a key that is not there yet is inserted."""

    name: str
    key: tuple[str, ...]
    once: tuple[str, ...] = ()
    """Columns that are set when the row is inserted and never changed."""
    merged: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What a column of a row that is there becomes, where that is not the new value."""
    only_where: str = "true"
    """Which rows that are there may change."""
    is_inserted: bool = True
    """Whether a row that is not there is inserted."""

    async def save(self, conn: Connection, row: Mapping[str, object]) -> None:
        await conn.execute(self._statement(tuple(row)), *map(_as_column, row.values()))

    @cache  # noqa: B019 - tables are constants
    def _statement(self, names: tuple[str, ...]) -> str:
        numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
        changed = [name for name in names if name not in (*self.key, *self.once)]
        if not self.is_inserted:
            changes = ", ".join(f"{name} = {numbers[name]}" for name in changed)
            keys = " AND ".join(f"{name} = {numbers[name]}" for name in self.key)
            return f"UPDATE {self.name} SET {changes} WHERE {keys} AND {self.only_where}"
        changes = ", ".join(f"{name} = {self.merged.get(name, f'EXCLUDED.{name}')}" for name in changed)
        update = f"UPDATE SET {changes} WHERE {self.only_where}" if changed else "NOTHING"
        return (
            f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({', '.join(numbers.values())})"
            f" ON CONFLICT ({', '.join(self.key)}) DO {update}"
        )


def _as_column(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [_as_column(each) for each in value] if isinstance(value, tuple) else value


JOB = Table("job", ("job_id",), once=("tenant",), only_where="job.tenant = EXCLUDED.tenant")
CHECKPOINT = Table(
    "checkpoint",
    ("job_id", "attempt", "step", "manifest_sha256"),
    once=("tenant", "created_at"),
    merged={
        "kind": "CASE WHEN EXCLUDED.kind = '' THEN checkpoint.kind ELSE EXCLUDED.kind END",
        "metrics": "checkpoint.metrics || EXCLUDED.metrics",
        "state": "CASE WHEN EXCLUDED.state = 'written' THEN checkpoint.state ELSE EXCLUDED.state END",
    },
)
ALERT = Table("alert", ("job_id", "attempt", "rule", "episode"), once=("tenant", "raised_at"))
RAISED_ALERT = Table("alert", ("job_id", "attempt", "rule", "episode"), is_inserted=False)
SWEEP = Table("sweep", ("sweep_id",), once=("tenant",), only_where="sweep.tenant = EXCLUDED.tenant")
TRIAL = Table("trial", ("sweep_id", "number"), once=("tenant", "job_id"))
DATASET = Table(
    "dataset",
    ("dataset_id",),
    once=("tenant",),
    merged={
        "dataset_version": "coalesce(EXCLUDED.dataset_version, dataset.dataset_version)",
        "detail": "dataset.detail || EXCLUDED.detail",
    },
    only_where="dataset.tenant = EXCLUDED.tenant",
)
SUITE = Table(
    "suite",
    ("name", "is_benchmark"),
    merged={"detail": "suite.detail || EXCLUDED.detail"},
    only_where="suite.registered_at <= EXCLUDED.registered_at",
)
EVALUATION = Table("evaluation", ("eval_id",), once=("tenant", "job_id", "model_id", "number", "created_at"))
RUNNING_EVALUATION = Table("evaluation", ("eval_id",), only_where="outcome = 'running'", is_inserted=False)
BASE = Table("base_model", ("name",))
NEW_VERSION = Table(
    "model",
    ("model_id",),
    once=(
        *("tenant", "full_name", "digest", "job_id", "base_model", "base_sha", "dataset_version", "stage"),
        *("detail", "created_at"),
    ),
)
VERSION = Table("model", ("model_id",), is_inserted=False)
EXPORT = Table(
    "export", ("export_id",), once=("tenant", "model_id"), only_where="export.tenant = EXCLUDED.tenant"
)
RUNNING_EXPORT = Table("export", ("export_id",), only_where="state = 'running'", is_inserted=False)
POOL = Table("pool", ("name",))
CORDON = Table("cordon", ("pool", "machine"))
KAFKA_USER = Table("kafka_user", ("name",), once=("tenant",))
REPLICA = Table("replica", ("replica_id",), once=("pool", "base_model", "base_sha"))
INCARNATION = Table("replica", ("replica_id", "incarnation"), is_inserted=False)
# What is approved and what is served come on two topics, in any order: of one generation, the latter stays.
ROUTE = Table(
    "route",
    ("tenant", "slot"),
    merged={
        "served_name": "CASE WHEN EXCLUDED.served_name = '' THEN route.served_name ELSE EXCLUDED.served_name END",
        "replicas": "CASE WHEN EXCLUDED.state IN ('pending', 'failed') THEN route.replicas"
        " ELSE EXCLUDED.replicas END",
    },
    only_where="""route.generation < EXCLUDED.generation
        OR (route.generation = EXCLUDED.generation AND EXCLUDED.state NOT IN ('pending', 'withdrawn'))""",
)


async def update_job(conn: Connection, job_id: str, tenant: str, **changes: object) -> None:
    """Set columns of a job, which need not be known yet: topics come in any order."""
    await JOB.save(conn, {"job_id": job_id, "tenant": tenant, **changes})


def attempt_name(job_id: str, attempt: int) -> str:
    """What the steps of an attempt wait for until it was scheduled and has nodes."""
    return f"attempt:{job_id}/{attempt}"


async def require_attempt(conn: Connection, job_id: str, tenant: str, attempt: int) -> None:
    """Raises ParentUnknown before the attempt was scheduled, Rejected where the job is another tenant's."""
    owner = await find(JobOwner, conn, WHOSE_ATTEMPT, job_id)
    if owner is None or owner.attempt < attempt:
        raise ParentUnknown(attempt_name(job_id, attempt))
    if owner.tenant != tenant:
        raise Rejected(f"{job_id} is of tenant {owner.tenant}, found {tenant}")


async def find_public_key(conn: Connection, job_id: str, attempt: int) -> str | None:
    """Return the public key of the attempt's node 0, where that has one. Raises ParentUnknown until it has nodes."""
    nodes = await conn.fetchval(NODES_OF_ATTEMPT, job_id, attempt)
    if nodes is None:
        raise ParentUnknown(attempt_name(job_id, attempt))
    return key_of_first(AllocatedNode.model_validate(node) for node in nodes)


async def find_course(conn: Connection, job_id: str) -> JobCourse:
    """Return what is known of the job's course by now."""
    course = await find(JobCourse, conn, FIND_COURSE, job_id)
    return course or JobCourse(num_steps=None, spec=SubmittedSpec())


async def save_steps(conn: Connection, job_id: str, attempt: int, steps: Sequence[StepMetrics]) -> None:
    """Record steps and count their tokens. Where several attempts came to a step, the last one's numbers count."""
    numbers = [step.step for step in steps]
    rows = [(job_id, step.step, attempt, step.model_dump(mode="json", exclude={"step"})) for step in steps]
    await conn.execute(LOCK_JOB, job_id)
    before = await conn.fetchval(TOKENS_OF_STEPS, job_id, numbers)
    await conn.executemany(SAVE_STEP, rows)
    added = await conn.fetchval(TOKENS_OF_STEPS, job_id, numbers) - before
    await conn.execute(COUNT_STEPS, job_id, max(numbers, default=0), added)


async def save_validations(
    conn: Connection, job_id: str, attempt: int, validations: Sequence[StepValidated]
) -> None:
    """Record what was measured after recorded steps; of several attempts at one, the last one's numbers count."""
    rows = [(job_id, each.step, attempt, each.metrics) for each in validations]
    await conn.executemany(SAVE_VALIDATION, rows)


async def end_job(conn: Connection, job_id: str, *, at: datetime) -> None:
    """Note when the job ended: the time for which its history is kept begins."""
    await conn.execute(END_JOB, job_id, at)


async def name_model(conn: Connection, job_id: str, tenant: str, *, full_name: str, model_id: str) -> None:
    """Name the model of a job that had succeeded before the model was registered."""
    await conn.execute(ADD_MODEL_OF_JOB, job_id, tenant, full_name, model_id)


async def delay_jobs(conn: Connection, event: Delayed) -> None:
    await conn.execute(DELAY_JOBS, event.subject_id, event.tenant, event.waiting_for)


async def wait_at_backend(conn: Connection, job_id: str, attempt: int, waiting_for: str) -> None:
    """Note what the attempt waits for in the queue of its cluster backend."""
    await conn.execute(WAIT_AT_BACKEND, job_id, attempt, waiting_for)


async def clear_waiting(conn: Connection, job_id: str, tenant: str) -> None:
    """Note that the job waits for nothing any more."""
    await conn.execute(CLEAR_WAITING, job_id, tenant)


async def warn_jobs_on_base(
    unit: Unit, base_model: str, base_sha: str, event_id: str, warning: JobWarning
) -> None:
    """Jobs that have not ended: in what is shown of them and in their timelines, as following from the event."""
    data = warning.model_dump(mode="json")
    await unit.conn.execute(WARN_JOBS_ON_BASE, base_model, base_sha, event_id, data, unit.now)


async def note_dataset(conn: Connection, command: SubmitDataset) -> None:
    """Show the dataset before ingest has accepted it, keep the bytes that it is made of, and its policy."""
    policy = command.spec.policy.model_dump(mode="json")
    files = digests_of(command.spec)
    await conn.execute(NOTE_DATASET, command.dataset_id, command.tenant, files, policy)


def digests_of(spec: DatasetSpec) -> list[str]:
    """Return sha256 of the files that a dataset is made of."""
    mix = spec.safety_mix.file if spec.safety_mix else None
    named = (spec.training_file, spec.validation_file, spec.holdout, mix)
    return [file.sha256 for file in named if file]


async def refuse_dataset(conn: Connection, event: CommandRefused) -> None:
    detail = {"code": event.code, "message": event.message}
    await conn.execute(REFUSE_DATASET, event.subject_id, event.tenant, detail)


async def refuse_sweep(conn: Connection, event: CommandRefused, *, at: datetime) -> None:
    await conn.execute(REFUSE_SWEEP, event.subject_id, event.tenant, event.message, at)


async def save_answer(conn: Connection, dataset_id: str, tenant: str, answer: DatasetAnswer) -> None:
    await conn.execute(SAVE_ANSWER, dataset_id, tenant, answer.model_dump(mode="json"))


async def save_gate_policy(conn: Connection, event: GatePolicyPublished) -> None:
    await conn.execute(SAVE_POLICY, event.model_dump(mode="json", exclude={"scope", "suites"}))


async def compare_versions(conn: Connection, base_model: str, base_sha: str) -> None:
    """Versions on other files of the base model are stale."""
    await conn.execute(SET_STALE, base_model, base_sha)


async def compare_version(conn: Connection, model_id: str) -> None:
    """Mark the version as stale where its base model has other files by now."""
    await conn.execute(COMPARE_WITH_BASE, model_id)


async def save_outcome(conn: Connection, command_id: str, event: Message) -> None:
    await conn.execute(SAVE_OUTCOME, command_id, event.type, event.model_dump(mode="json"))


async def add_refusal(conn: Connection, event: CommandRefused, *, at: datetime) -> None:
    refusal = (event.command_id, event.command, event.subject_id, event.code, event.message, event.param)
    await conn.execute(ADD_REFUSAL, event.tenant, *refusal, at)


async def remove_kafka_user(conn: Connection, name: str) -> None:
    await conn.execute(REMOVE_KAFKA_USER, name)


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
    unit: Unit, job_id: str, tenant: str, event_id: str, warnings: Sequence[JobWarning]
) -> None:
    """Show them in the job's timeline, as following from the event."""
    await unit.conn.execute(LOCK_JOB, job_id)
    for warning in warnings:
        data = warning.model_dump(mode="json")
        values = (job_id, tenant, event_id, "JobWarned", "warn", warning.message, data, unit.now)
        await unit.conn.execute(INSERT_EVENT, *values)


async def add_metrics(
    conn: Connection,
    job_id: str,
    tenant: str,
    event_id: str,
    message: str,
    data: JsonObject,
    at: datetime,
) -> None:
    """Numbers in the job's timeline, from the event."""
    await conn.execute(LOCK_JOB, job_id)
    values = (job_id, tenant, event_id, METRICS, "info", message, data, at)
    await conn.execute(INSERT_METRICS, *values)


async def save_cost(conn: Connection, event: CostAccrued) -> None:
    """Keep what an attempt cost. Older events do not say how many devices its nodes had: one each."""
    await conn.execute(
        SAVE_COST,
        *(
            event.job_id,
            event.attempt,
            event.tenant,
            event.pool or "",
            event.capacity_type,
            event.node_seconds,
        ),
        event.node_seconds if event.device_seconds is None else event.device_seconds,
        event.cost,
        event.cost if event.charged is None else event.charged,
        *(event.failure_class, event.until),
    )
