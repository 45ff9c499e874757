"""SQL that the page asks: lists and counts of jobs, curves, and whether anything that it shows has changed."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import Literal

from schemas.lifecycle import JobState
from services.gateway.filters import ListFilter, Order, escaped, patterns
from services.gateway.model import Evaluation, Job, JobEvent, ModelVersion, Route, Row, StoredFile
from services.gateway.readmodels import (
    EVALUATION_COLUMNS,
    EVENT_COLUMNS,
    IS_LATE,
    JOB_COLUMNS,
    MODEL_COLUMNS,
    ROUTE_COLUMNS,
    TRAINING_FILE,
    WITH_MUTES,
)
from services.gateway.store import columns, find, select
from shared.postgres.database import Database

JobOrder = Literal["created", "worst", "ended", "cost", "loss"]

SAMPLES = 32
"""Most buckets of a sampled curve."""
STEPS_OF_A_SAMPLE = 4
"""Newest steps of a bucket whose mean is taken."""


class JobFilter(ListFilter):
    """Words are searched in the id, the names and the metadata."""

    states: tuple[JobState, ...] = ()
    metadata: dict[str, str] | None = None
    """What jobs must have; empty for those that have none."""
    base: str | None = None
    """Part of the base model's name."""
    method: str | None = None
    cost_above: Decimal | None = None
    created_within: timedelta | None = None
    ended_within: timedelta | None = None


class RedoneSteps(Row):
    """Steps that an attempt did which an earlier one had done before it."""

    attempt: int
    last_step: int
    """The last one that the earlier ones had done."""
    passed_by: int | None
    """The attempt that first did more than those; None where none has yet."""
    passed_at: datetime | None
    """When this attempt did more than those; None where it has not, or a later one did that step again."""


class CurvePoints(Row):
    """A number over the steps of a job, in their order."""

    steps: list[int]
    values: list[float]


class SampledCurve(CurvePoints):
    """The training loss of a job at few steps: at the end of each bucket that has one, the mean of its newest."""

    job_id: str


class StepTimes(Row):
    """When steps were done."""

    began_at: datetime | None
    """When training began; None where no step is kept and no event says so, and where no step was asked for."""
    seconds: list[float | None]
    """From then to each step, in their order; None where neither the step nor one before it is kept."""
    attempts: list[int | None]
    """The newest attempt that did each of them."""


JOB_TEXT = """concat_ws(' ', job_id, spec ->> 'suffix', spec ->> 'base_model', fine_tuned_model, dataset_id,
                        spec -> 'metadata')"""
MATCHING_JOBS = f"""
      FROM job
     WHERE tenant = $1
       AND ($2::jsonb IS NULL
            OR (spec -> 'metadata' @> $2 AND ($2 <> jsonb_build_object() OR spec -> 'metadata' = $2)))
       AND ($3::text[] IS NULL OR {JOB_TEXT} ILIKE ALL ($3))
       AND ($4::text IS NULL OR spec ->> 'base_model' ILIKE $4)
       AND ($5::text IS NULL OR spec -> 'recipe' ->> 'method' = $5)
       AND ($6::numeric IS NULL OR cost > $6)
       AND ($7::interval IS NULL OR created_at > now() - $7)
       AND ($8::interval IS NULL OR finished_at > now() - $8)"""
COUNT_JOBS = f"SELECT state, count(*) AS count {MATCHING_JOBS} GROUP BY state"
# What a person looks at first: what failed, what is watched or late, what its gate did not pass, what waits for them.
# Alerts are in the order of the index of a tenant's open ones, so that it is read, and not those of all tenants.
WORST = f"""
    ROW(CASE WHEN state = 'failed' THEN 7
             WHEN job_id = ANY (ARRAY(SELECT alert.job_id {WITH_MUTES}
                                       WHERE alert.tenant = $1 AND cleared_at IS NULL AND mute_job_id IS NULL
                                       ORDER BY number)) THEN 6
             WHEN {IS_LATE} THEN 5
             WHEN state = 'succeeded' AND is_promoted IS FALSE THEN 4
             WHEN state = 'paused' THEN 3
             WHEN state NOT IN ('succeeded', 'cancelled') THEN 2
             WHEN state = 'succeeded' THEN 1
             ELSE 0 END,
        created_at)"""
JOB_ORDERS: Mapping[JobOrder, Order] = {
    "created": Order("created_at"),
    "worst": Order(WORST),
    "ended": Order("coalesce(finished_at, 'infinity')"),
    "cost": Order("cost"),
    "loss": Order("-coalesce(valid_loss, 'infinity')"),
}


def jobs_by(name: JobOrder) -> str:
    order = JOB_ORDERS[name]
    return f"""
        SELECT {JOB_COLUMNS} {MATCHING_JOBS}
           AND ($9::text[] IS NULL OR state = ANY ($9)) AND {order.after("$10", "job", "job_id")}
         {order.by("job_id")} LIMIT $11"""


LIST_JOBS = jobs_by("created")
LIST_WORST_JOBS = jobs_by("worst")
# A job that has no place yet, or waits for a person, comes after those that wait for devices.
LIST_WAITING = f"""
    SELECT {JOB_COLUMNS} FROM job
     WHERE tenant = $1 AND state = ANY ($2) AND state NOT IN ('succeeded', 'failed', 'cancelled')
     ORDER BY CASE state WHEN 'queued' THEN (queue_entry ->> 'position')::int END NULLS LAST, created_at, job_id
     LIMIT $3"""
# The row's version changes with every write: a page that is open asks for this, and for the job itself only then.
JOB_VERSION = """
    SELECT concat_ws('.', job.xmin, (SELECT max(id) FROM job_event WHERE job_event.job_id = job.job_id),
                     (SELECT max(xmin::text::bigint) FROM evaluation WHERE evaluation.job_id = job.job_id),
                     (SELECT max(xmin::text::bigint) FROM checkpoint WHERE checkpoint.job_id = job.job_id))
      FROM job WHERE job_id = $1 AND tenant = $2"""
VERSIONS_OF_JOBS = "SELECT job_id, xmin::text AS version FROM job WHERE tenant = $1 AND job_id = ANY ($2)"
VERSION_OF_TENANT = """
    SELECT concat_ws('/',
        (SELECT string_agg(concat_ws('.', job_id, xmin), ' ' ORDER BY job_id) FROM job
          WHERE tenant = $1 AND state = ANY ($2)),
        (SELECT max(finished_at) FROM job WHERE tenant = $1),
        (SELECT concat_ws('.', count(*), max(number)) FROM alert WHERE tenant = $1 AND cleared_at IS NULL),
        (SELECT concat_ws('.', count(*), max(muted_at)) FROM alert_mute
          WHERE tenant = $1 AND (until IS NULL OR until > now())),
        (SELECT string_agg(xmin::text, ' ' ORDER BY slot) FROM route WHERE tenant = $1),
        (SELECT string_agg(xmin::text, ' ' ORDER BY name) FROM pool))"""
COUNT_NEWER_JOBS = f"""
    SELECT count(*) {MATCHING_JOBS}
       AND ($9::text[] IS NULL OR state = ANY ($9))
       AND ($10::text IS NULL
            OR (created_at, job_id) > (SELECT created_at, job_id FROM job WHERE job_id = $10 AND tenant = $1))"""
# The number is taken out once, before the rows are sorted: with all that was measured they do not fit into memory.
CURVE = """
    SELECT coalesce(array_agg(step), '{}') AS steps, coalesce(array_agg(value), '{}') AS values
      FROM (SELECT step, (metrics ->> $2)::float8 AS value FROM step
             WHERE job_id = $1 ORDER BY step OFFSET 0) AS known
     WHERE value IS NOT NULL"""
# Buckets begin at multiples of a power of two, so that old points stay where they are while a job goes on.
SAMPLED_CURVES = f"""
    SELECT job_id, array_agg(step ORDER BY place) AS steps, array_agg(loss ORDER BY place) AS values
      FROM (SELECT job_id, last_recorded,
                   (2 ^ greatest(0, ceil(log(2.0, last_recorded::numeric / {SAMPLES}))))::int AS every
              FROM job WHERE tenant = $1 AND job_id = ANY ($2) AND last_recorded > 0) AS asked
     CROSS JOIN LATERAL generate_series(every, last_recorded + every - 1, every) AS place
     CROSS JOIN LATERAL
           (SELECT max(step) AS step, avg(loss) AS loss
              FROM (SELECT step, (metrics ->> 'loss')::float8 AS loss FROM step
                     WHERE step.job_id = asked.job_id AND step > place - every AND step <= place
                     ORDER BY step DESC LIMIT {STEPS_OF_A_SAMPLE}) AS newest
             WHERE loss IS NOT NULL) AS sample
     WHERE loss IS NOT NULL
     GROUP BY job_id"""
# What the trainer measured with a bundle, where the recipe names no steps for it.
VALIDATION_CURVE = """
    SELECT coalesce(array_agg(step ORDER BY step), '{}') AS steps,
           coalesce(array_agg(loss ORDER BY step), '{}') AS values
      FROM (SELECT DISTINCT ON (step) step, loss
              FROM (SELECT step, 1 AS preference,
                           coalesce(validation ->> 'full_valid_loss', validation ->> 'valid_loss')::float8 AS loss
                      FROM step WHERE job_id = $1 AND validation IS NOT NULL
                    UNION ALL
                    SELECT step, 2, coalesce(metrics ->> 'full_valid_loss', metrics ->> 'valid_loss')::float8
                      FROM checkpoint WHERE job_id = $1) AS measured
             WHERE loss IS NOT NULL ORDER BY step, preference) AS known"""
# A step that was not recorded was done when the one before it was. A test's steps may be older than the events.
TIMES_OF_STEPS = """
    SELECT min(began.began_at) AS began_at,
           coalesce(array_agg(extract(epoch FROM done.done_at - began.began_at)::float8 ORDER BY asked.number),
                    '{}') AS seconds,
           coalesce(array_agg(done.attempt ORDER BY asked.number), '{}') AS attempts
      FROM unnest($2::int[]) WITH ORDINALITY AS asked (step, number)
      LEFT JOIN LATERAL
           (SELECT (metrics ->> 'time')::timestamptz AS done_at, attempt FROM step
             WHERE job_id = $1 AND step <= asked.step ORDER BY step DESC LIMIT 1) AS done ON true
     CROSS JOIN (SELECT least((SELECT created_at FROM job_event
                                WHERE job_id = $1 AND type = 'JobRunning' ORDER BY id LIMIT 1),
                              (SELECT (metrics ->> 'time')::timestamptz FROM step
                                WHERE job_id = $1 ORDER BY step LIMIT 1)) AS began_at) AS began"""
TOKENS_BETWEEN_STEPS = """
    SELECT place, sum(tokens)::bigint AS tokens
      FROM (SELECT width_bucket(step - 1, $2::int[]) AS place, (metrics ->> 'num_tokens')::bigint AS tokens FROM step
             WHERE job_id = $1 AND step <= $3 OFFSET 0) AS known
     GROUP BY place"""
NEWEST_VALIDATION = """
    SELECT max(step)
      FROM (SELECT step FROM step WHERE job_id = $1 AND step > $2 AND validation IS NOT NULL
            UNION ALL
            SELECT step FROM checkpoint WHERE job_id = $1 AND step > $2 AND metrics ? 'valid_loss') AS measured"""
LIST_EVALUATIONS = f"""
    SELECT {EVALUATION_COLUMNS} FROM evaluation WHERE model_id = $1 ORDER BY number DESC, created_at DESC LIMIT 20"""
NEWEST_OUTCOMES = """
    SELECT DISTINCT ON (model_id) model_id, outcome FROM evaluation WHERE model_id = ANY($1)
     ORDER BY model_id, number DESC, created_at DESC"""
VERSION_OF_GATE = """
    SELECT concat_ws('/', (SELECT xmin FROM model WHERE model_id = $1),
                     (SELECT string_agg(concat_ws('.', eval_id, xmin), ' ' ORDER BY eval_id)
                        FROM evaluation WHERE model_id = $1))"""
ROUTES_OF_MODEL = (
    f"SELECT {ROUTE_COLUMNS} FROM route WHERE tenant = $1 AND model_id = $2 ORDER BY slot LIMIT 20"
)
VERSION_OF_DATASET = "SELECT xmin::text FROM dataset WHERE dataset_id = $1 AND tenant = $2"
LIST_JOBS_OF_DATASET = f"""
    SELECT {JOB_COLUMNS} FROM job
     WHERE (dataset_id = $1 OR stages @> jsonb_build_array(jsonb_build_object('dataset_id', $1::text)))
       AND tenant = $2 ORDER BY created_at DESC, job_id LIMIT $3"""
LIST_JOBS_STARTED_FROM = f"""
    SELECT {JOB_COLUMNS} FROM job WHERE tenant = $1 AND spec #>> '{{start_from,job_id}}' = $2
     ORDER BY created_at DESC LIMIT $3"""
FILES_BY_DIGEST = f"""
    SELECT DISTINCT ON (sha256) {columns(StoredFile)} FROM file
     WHERE tenant = $1 AND sha256 = ANY ($2) AND state = 'uploaded' ORDER BY sha256, created_at DESC"""
NAMES_OF_TRAINING_FILES = f"""
    SELECT dataset_id, {TRAINING_FILE} AS filename FROM dataset WHERE tenant = $1 AND dataset_id = ANY ($2)"""
ADDRESS_OF_ID = """
    SELECT '/jobs/' || job_id FROM job WHERE job_id = $2 AND tenant = $1
    UNION ALL SELECT '/datasets/' || dataset_id FROM dataset WHERE dataset_id = $2 AND tenant = $1
    UNION ALL SELECT '/models/' || model_id FROM model WHERE model_id = $2 AND tenant = $1
    UNION ALL SELECT '/sweeps/' || sweep_id FROM sweep WHERE sweep_id = $2 AND tenant = $1
    UNION ALL SELECT '/webhooks/' || endpoint_id FROM webhook_endpoint WHERE endpoint_id = $2 AND tenant = $1"""
ADDRESSES_OF_PREFIX = """
    SELECT address FROM (
        SELECT '/jobs/' || job_id AS address FROM job WHERE starts_with(job_id, $2) AND tenant = $1
        UNION ALL SELECT '/datasets/' || dataset_id FROM dataset WHERE starts_with(dataset_id, $2) AND tenant = $1
        UNION ALL SELECT '/models/' || model_id FROM model WHERE starts_with(model_id, $2) AND tenant = $1
        UNION ALL SELECT '/sweeps/' || sweep_id FROM sweep WHERE starts_with(sweep_id, $2) AND tenant = $1
        UNION ALL SELECT '/webhooks/' || endpoint_id FROM webhook_endpoint
                   WHERE starts_with(endpoint_id, $2) AND tenant = $1) AS known
     ORDER BY address LIMIT $3"""
LATEST_ROUTES = f"SELECT {ROUTE_COLUMNS} FROM route WHERE tenant = $1 ORDER BY updated_at DESC LIMIT $2"
EVENTS_OF_TYPES = f"""
    SELECT {EVENT_COLUMNS} FROM job_event WHERE job_id = $1 AND type = ANY ($2) ORDER BY id LIMIT 1000"""
# Of an attempt that began after a step: the last step that an earlier one had done before, and the first new one.
REDONE_STEPS = """
    SELECT began.attempt, redone.step AS last_step, fresh.by AS passed_by,
           CASE WHEN fresh.attempt = began.attempt THEN (fresh.metrics ->> 'time')::timestamptz END AS passed_at
      FROM unnest($2::int[], $3::int[]) AS began (attempt, after)
      LEFT JOIN LATERAL
           (SELECT step, attempt, metrics, coalesce(first_attempt, attempt) AS by FROM step
             WHERE job_id = $1 AND step > began.after AND coalesce(first_attempt, attempt) >= began.attempt
             ORDER BY step LIMIT 1) AS fresh ON true
      JOIN LATERAL
           (SELECT step FROM step
             WHERE job_id = $1 AND step > began.after AND step < coalesce(fresh.step, 2147483647)
             ORDER BY step DESC LIMIT 1) AS redone ON true"""
CHECKPOINT_SIZES = """
    SELECT data #>> '{bundle,manifest_sha256}' AS digest, (data ->> 'size_bytes')::bigint AS size_bytes FROM job_event
     WHERE job_id = $1 AND type = 'CheckpointVerified' AND data #>> '{bundle,manifest_sha256}' = ANY ($2)"""
MODELS_OF_BUNDLES = f"""
    SELECT {MODEL_COLUMNS} FROM model
     WHERE tenant = $1 AND job_id = $2 AND detail #>> '{{bundle,manifest_sha256}}' = ANY ($3)"""
NODES_OF_ATTEMPT = """
    SELECT data ->> 'nodes' FROM job_event
     WHERE job_id = $1 AND type = 'JobScheduled' AND data -> 'attempt' = to_jsonb($2::int) LIMIT 1"""


async def list_jobs(
    database: Database,
    tenant: str,
    job_filter: JobFilter,
    *,
    order: JobOrder = "created",
    after: str | None,
    limit: int,
) -> list[Job]:
    states = [*job_filter.states] or None
    return await select(Job, database, jobs_by(order), tenant, *_matching(job_filter), states, after, limit)


async def list_waiting(database: Database, tenant: str, states: Sequence[str], *, limit: int) -> list[Job]:
    """Return the first of them by their place in the queue, then the oldest."""
    return await select(Job, database, LIST_WAITING, tenant, states, limit)


async def count_jobs(database: Database, tenant: str, job_filter: JobFilter) -> dict[str, int]:
    """Count matching jobs by state, in whatever states the filter wants them."""
    rows = await database.fetch(COUNT_JOBS, tenant, *_matching(job_filter))
    return {row["state"]: row["count"] for row in rows}


def _matching(job_filter: JobFilter) -> tuple[object, ...]:
    words = patterns(job_filter.words)
    base = job_filter.base and f"%{escaped(job_filter.base)}%"
    ages = job_filter.created_within, job_filter.ended_within
    return job_filter.metadata, words, base, job_filter.method, job_filter.cost_above, *ages


async def find_job_version(database: Database, job_id: str, tenant: str) -> str | None:
    """Return a text that changes whenever the job, its timeline, its evaluations or its checkpoints do."""
    version: str | None = await database.fetchval(JOB_VERSION, job_id, tenant)
    return version


async def find_versions_of_jobs(database: Database, tenant: str, job_ids: Sequence[str]) -> dict[str, str]:
    rows = await database.fetch(VERSIONS_OF_JOBS, tenant, job_ids)
    return {row["job_id"]: row["version"] for row in rows}


async def find_version_of_tenant(database: Database, tenant: str, states: Sequence[str]) -> str:
    """Return a text that changes with every job in these states, every end of one, every slot and every pool."""
    return str(await database.fetchval(VERSION_OF_TENANT, tenant, states))


async def count_newer_jobs(database: Database, tenant: str, job_filter: JobFilter, job_id: str | None) -> int:
    """Count matching jobs that are newer than this one; all of them where it is None."""
    states = [*job_filter.states] or None
    return int(await database.fetchval(COUNT_NEWER_JOBS, tenant, *_matching(job_filter), states, job_id))


async def find_curve(database: Database, job_id: str, metric: str) -> CurvePoints:
    """Return the number of that name of every step that has one; validation losses where it is `valid_loss`."""
    if metric == "valid_loss":
        points = await find(CurvePoints, database, VALIDATION_CURVE, job_id)
    else:
        points = await find(CurvePoints, database, CURVE, job_id, metric)
    assert points is not None, "an aggregate has one row"
    return points


async def find_sampled_curves(
    database: Database, tenant: str, job_ids: Sequence[str]
) -> dict[str, SampledCurve]:
    """Return the training losses of jobs by their ids; those without a step that is kept are not among them."""
    rows = await select(SampledCurve, database, SAMPLED_CURVES, tenant, job_ids)
    return {row.job_id: row for row in rows}


async def find_times_of_steps(database: Database, job_id: str, steps: Sequence[int]) -> StepTimes:
    times = await find(StepTimes, database, TIMES_OF_STEPS, job_id, steps)
    assert times is not None, "an aggregate has one row"
    return times


async def find_tokens_of_steps(database: Database, job_id: str, steps: Sequence[int]) -> list[int]:
    """Return the tokens of all recorded steps up to and with each of these, which come in their order; an empty list
    where none of those steps is kept."""
    if not steps:
        return []
    rows = await database.fetch(TOKENS_BETWEEN_STEPS, job_id, steps, steps[-1])
    tokens = {row["place"]: row["tokens"] for row in rows}
    return [*accumulate(tokens.get(place, 0) for place in range(len(steps)))] if tokens else []


async def find_newest_validation(database: Database, job_id: str, *, after: int) -> int | None:
    """Return the last step after this one that was measured on the validation file, which may be a while after it was
    done; None where there is none."""
    step: int | None = await database.fetchval(NEWEST_VALIDATION, job_id, after)
    return step


async def list_evaluations(database: Database, model_id: str) -> list[Evaluation]:
    """Return the newest twenty of them, the newest first."""
    return await select(Evaluation, database, LIST_EVALUATIONS, model_id)


async def find_outcomes(database: Database, model_ids: Sequence[str]) -> dict[str, str]:
    """Return the outcome of the newest evaluation of each model that has one."""
    rows = await database.fetch(NEWEST_OUTCOMES, [*model_ids])
    return {row["model_id"]: row["outcome"] for row in rows}


async def find_version_of_gate(database: Database, model_id: str) -> str:
    """Return a text that changes with the model's stage and with every evaluation of it."""
    return str(await database.fetchval(VERSION_OF_GATE, model_id))


async def find_version_of_dataset(database: Database, dataset_id: str, tenant: str) -> str:
    """Return a text that changes whenever the dataset does."""
    return str(await database.fetchval(VERSION_OF_DATASET, dataset_id, tenant))


async def list_jobs_of_dataset(database: Database, dataset_id: str, tenant: str, *, limit: int) -> list[Job]:
    return await select(Job, database, LIST_JOBS_OF_DATASET, dataset_id, tenant, limit)


async def list_jobs_started_from(database: Database, tenant: str, job_id: str, *, limit: int) -> list[Job]:
    """Return the newest jobs that were started from what this one trained."""
    return await select(Job, database, LIST_JOBS_STARTED_FROM, tenant, job_id, limit)


async def find_files(database: Database, tenant: str, digests: Sequence[str]) -> dict[str, StoredFile]:
    """Return the newest of the tenant's files with these bytes by their sha256; without those that are deleted."""
    rows = await select(StoredFile, database, FILES_BY_DIGEST, tenant, digests)
    return {row.sha256: row for row in rows}


async def find_names_of_training_files(
    database: Database, tenant: str, dataset_ids: Sequence[str]
) -> dict[str, str]:
    """Return the names by dataset; without those whose file is deleted."""
    rows = await database.fetch(NAMES_OF_TRAINING_FILES, tenant, dataset_ids)
    return {row["dataset_id"]: row["filename"] for row in rows if row["filename"] is not None}


async def list_routes_of_model(database: Database, tenant: str, model_id: str) -> list[Route]:
    """Return at most twenty slots that have the version."""
    return await select(Route, database, ROUTES_OF_MODEL, tenant, model_id)


async def find_address(database: Database, tenant: str, object_id: str) -> str | None:
    """Return where the page shows the job, dataset, model, sweep or endpoint of this id."""
    address: str | None = await database.fetchval(ADDRESS_OF_ID, tenant, object_id)
    return address


async def list_addresses(database: Database, tenant: str, prefix: str, *, limit: int) -> list[str]:
    """Return where the page shows what has an id that begins so, by address."""
    rows = await database.fetch(ADDRESSES_OF_PREFIX, tenant, prefix, limit)
    return [row["address"] for row in rows]


async def list_latest_routes(database: Database, tenant: str, *, limit: int) -> list[Route]:
    """Return the slots that changed last."""
    return await select(Route, database, LATEST_ROUTES, tenant, limit)


async def find_events_of_types(database: Database, job_id: str, types: Sequence[str]) -> list[JobEvent]:
    """Return at most a thousand of them, the oldest first."""
    return await select(JobEvent, database, EVENTS_OF_TYPES, job_id, types)


async def find_redone_steps(database: Database, job_id: str, began: Mapping[int, int]) -> list[RedoneSteps]:
    """`began`: the step after which each attempt began. Attempts that did no step again have no row."""
    return await select(RedoneSteps, database, REDONE_STEPS, job_id, [*began], [*began.values()])


async def find_checkpoint_sizes(database: Database, job_id: str, digests: Sequence[str]) -> dict[str, int]:
    """Return bytes by the digest of a manifest, of those whose verification is among the events that are kept."""
    rows = await database.fetch(CHECKPOINT_SIZES, job_id, digests)
    return {row["digest"]: row["size_bytes"] for row in rows if row["size_bytes"] is not None}


async def find_models_of_bundles(
    database: Database, tenant: str, job_id: str, digests: Sequence[str]
) -> dict[str, ModelVersion]:
    """Return the versions that checkpoints of the job have become, by the digests of their manifests."""
    rows = await select(ModelVersion, database, MODELS_OF_BUNDLES, tenant, job_id, digests)
    return {row.detail.bundle.manifest_sha256: row for row in rows if row.detail.bundle}


async def count_nodes(database: Database, job_id: str, attempt: int) -> int:
    """Return how many nodes an attempt was scheduled on; 1 where its event is kept no more."""
    nodes = await database.fetchval(NODES_OF_ATTEMPT, job_id, attempt)
    return int(nodes) if nodes and nodes.isdecimal() else 1
