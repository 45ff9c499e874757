"""SQL of the read models: what requests ask of what events have said. They are written in `projections`."""

from collections.abc import Mapping, Sequence
from typing import Literal

from schemas.node import PoolCapacityChanged
from schemas.specification import DatasetPolicy, DatasetSpec
from services.gateway.filters import EVERYTHING, ListFilter, Order
from services.gateway.model import (
    BaseModelDetail,
    Checkpoint,
    Dataset,
    DatasetAnswer,
    Evaluation,
    Job,
    JobEvent,
    KafkaUser,
    MeasuredStep,
    ModelVersion,
    Outcome,
    RecordedSteps,
    Refusal,
    RegisteredBase,
    Replica,
    Route,
    Step,
    Suite,
)
from services.gateway.obstacles import Policy
from services.gateway.store import Source, columns, find, select
from services.gateway.tables import digests_of
from shared.postgres.database import Connection, Database
from shared.postgres.rows import read

STEPS_OF_A_RATE = 20
"""The newest steps of a job, over which the time of one is counted."""
# An attempt that holds its nodes for longer than all of the job was estimated to take at most.
IS_LATE = """coalesce(job.state IN ('running', 'stopping') AND extract(epoch FROM now() - job.held_since)
                      > (job.estimated_times -> 0 -> 'seconds' ->> 'high')::float8, false)"""
ACTION = """
    coalesce((SELECT spec -> 'alerts' ->> rule FROM job WHERE job.job_id = alert.job_id), 'notify')"""
# The mute of the job goes before that of the whole tenant. What pauses or stops a job is never muted.
WITH_MUTES = f"""
      FROM alert CROSS JOIN LATERAL (SELECT {ACTION} AS action) AS acts LEFT JOIN LATERAL (
           SELECT alert_mute.job_id AS mute_job_id, until AS mute_until, muted_by, muted_at FROM alert_mute
            WHERE alert_mute.tenant = alert.tenant AND alert_mute.rule = alert.rule
              AND alert_mute.job_id IN ('', alert.job_id) AND (until IS NULL OR until > now())
            ORDER BY alert_mute.job_id DESC LIMIT 1) AS mute ON action = 'notify'"""
JOB_COLUMNS = f"""
    job.xmin::text AS version,
    job_id, tenant, state, spec, dataset_id, dataset_version, config_hash, duplicate_of, retry_of, attempt,
    stage, stages, stage_plans, recipe_reasons,
    num_steps, greatest(last_step, last_recorded) AS last_step, valid_loss, trained_tokens, waiting_for, queue_entry,
    fine_tuned_model, model_id, is_promoted, is_deployed, ending, warnings,
    error, estimated_memory, estimated_times, preparation, certificate, cost, uncharged_cost, created_at, finished_at,
    round(price_per_hour * greatest(extract(epoch FROM now() - held_since), 0) / 3600, 6) AS running_cost,
    {IS_LATE} AS is_late,
    ARRAY(SELECT file_id FROM file WHERE file_id = ANY (job.result_files) AND state = 'uploaded') AS result_files,
    (SELECT jsonb_build_object('eval_id', eval_id, 'outcome', outcome, 'reason', reason, 'checks', checks,
                               'progress', progress)
       FROM evaluation
      WHERE evaluation.job_id = job.job_id AND (job.model_id IS NULL OR evaluation.model_id = job.model_id)
      ORDER BY outcome = 'running', number DESC, created_at DESC LIMIT 1) AS evaluation,
    (SELECT coalesce(jsonb_agg(jsonb_build_object('rule', rule, 'message', message, 'raised_at', raised_at,
                                                  'is_muted', mute_job_id IS NOT NULL) ORDER BY number), '[]')
       {WITH_MUTES} WHERE alert.job_id = job.job_id AND cleared_at IS NULL) AS alerts,
    (SELECT coalesce(jsonb_agg(to_jsonb(newest) ORDER BY newest.step DESC), '[]')
       FROM (SELECT step, attempt, metrics, validation FROM step
              WHERE step.job_id = job.job_id AND job.state IN ('running', 'stopping')
              ORDER BY step DESC LIMIT {STEPS_OF_A_RATE}) AS newest) AS newest_steps"""
FIND_JOB = f"SELECT {JOB_COLUMNS} FROM job WHERE job_id = $1 AND tenant = $2"
EVENT_COLUMNS = columns(JobEvent)
EVENTS_BEFORE = f"""
    SELECT {EVENT_COLUMNS} FROM job_event WHERE job_id = $1 AND ($2::bigint IS NULL OR id < $2)
       AND ($3::text[] IS NULL OR type = ANY ($3)) ORDER BY id DESC LIMIT $4"""
TYPES_OF_EVENTS = "SELECT DISTINCT type FROM job_event WHERE job_id = $1 ORDER BY type"
HAS_EVENT = "SELECT EXISTS (SELECT FROM job_event WHERE job_id = $1 AND id = $2)"
EVENTS_AFTER = f"SELECT {EVENT_COLUMNS} FROM job_event WHERE job_id = $1 AND id > $2 ORDER BY id LIMIT $3"
# The first of those with the lowest loss, as the trainer counts; of several stages the last one makes the model.
CHECKPOINT_COLUMNS = """
    job_id, attempt, step, manifest_sha256, kind, metrics, state, created_at,
    (attempt, step) IS NOT DISTINCT FROM (
        SELECT (other.attempt, other.step) FROM checkpoint AS other JOIN job USING (job_id)
         WHERE other.job_id = checkpoint.job_id AND other.state = 'verified'
           AND coalesce(job.stage_plans -> -1, job.spec) -> 'recipe' ->> 'load_best_model_at_end' = 'true'
           AND other.step > coalesce(job.num_steps - (job.stage_plans -> -1 ->> 'num_steps')::int, -1)
           AND other.metrics ? 'full_valid_loss'
         ORDER BY (other.metrics ->> 'full_valid_loss')::float, other.step, other.attempt DESC LIMIT 1
    ) AS is_best"""
LIST_CHECKPOINTS = f"""
    SELECT {CHECKPOINT_COLUMNS} FROM checkpoint
     WHERE job_id = $1 AND tenant = $2 AND state = 'verified'
       AND ($3::int IS NULL OR (attempt, step) < ($3, $4))
     ORDER BY attempt DESC, step DESC LIMIT $5"""
# Of several that an attempt wrote at a step, one that is of use.
FIND_CHECKPOINT = f"""
    SELECT {CHECKPOINT_COLUMNS} FROM checkpoint
     WHERE job_id = $1 AND tenant = $2 AND attempt = $3 AND step = $4
     ORDER BY state = 'verified' DESC, created_at DESC LIMIT 1"""
HAS_CHECKPOINT = """
    SELECT EXISTS (SELECT FROM checkpoint WHERE job_id = $1 AND tenant = $2 AND attempt = $3 AND step = $4)"""
LIST_STEPS = f"SELECT {columns(Step)} FROM step WHERE job_id = $1 AND step > $2 ORDER BY step LIMIT $3"
# Of several attempts that came to a step, the last one's numbers, as for the step itself.
LIST_STEPS_WITH_VALIDATION = """
    SELECT step, step.attempt, step.metrics, step.validation, measured.metrics AS measured
      FROM step LEFT JOIN LATERAL (
           SELECT metrics FROM checkpoint WHERE checkpoint.job_id = step.job_id AND checkpoint.step = step.step
            ORDER BY checkpoint.attempt DESC LIMIT 1) AS measured ON true
     WHERE step.job_id = $1 AND step > $2 ORDER BY step LIMIT $3"""
RECORDED_STEPS = """
    SELECT coalesce(last_step, 0) AS last_step, cardinality(result_files) > 0 AS has_results,
           last_recorded
      FROM job WHERE job_id = $1"""
FIND_ANSWER = "SELECT answer FROM dataset WHERE dataset_id = $1 AND tenant = $2"
JOBS_OF_DATASET = """
    SELECT job_id FROM job
     WHERE (dataset_id = $1 OR stages @> jsonb_build_array(jsonb_build_object('dataset_id', $1::text)))
       AND tenant = $2 ORDER BY job_id"""
TENANT_OF_DATASET = "SELECT tenant FROM dataset WHERE dataset_id = $1"
POLICY_OF_DATASET = "SELECT policy FROM dataset WHERE dataset_id = $1 AND tenant = $2"
SAME_DATASET = f"""
    SELECT {columns(Dataset)} FROM dataset
     WHERE tenant = $1 AND files = $2 AND policy = $3 AND detail ->> 'base_sha' = $4
       AND state IN ('ready', 'rejected')
     ORDER BY created_at DESC LIMIT 1"""
# The name that its owner has given to the newest file with these bytes.
TRAINING_FILE = """
    (SELECT filename FROM file
      WHERE file.tenant = dataset.tenant AND file.state = 'uploaded'
        AND sha256 = coalesce(detail #>> '{files,training}', files[1])
      ORDER BY file.created_at DESC LIMIT 1)"""
DatasetOrder = Literal["created", "name", "tokens"]
ModelOrder = Literal["created", "name"]
RouteOrder = Literal["slot", "changed"]
NEWEST = Order("created_at")
DATASET_ORDERS: Mapping[DatasetOrder, Order] = {
    "created": NEWEST,
    "name": Order(f"lower(coalesce({TRAINING_FILE}, dataset_id))", is_rising=True),
    "tokens": Order("coalesce((detail #>> '{counts,tokens}')::bigint, 0)"),
}


def datasets_by(name: DatasetOrder) -> str:
    order = DATASET_ORDERS[name]
    return f"""
        SELECT {columns(Dataset)} FROM dataset
         WHERE tenant = $1 AND {order.after("$2", "dataset", "dataset_id")}
           AND ($3::text[] IS NULL OR state = ANY ($3))
           AND ($4::text[] IS NULL OR concat_ws(' ', dataset_id, {TRAINING_FILE}) ILIKE ALL ($4))
         {order.by("dataset_id")} LIMIT $5"""


LIST_DATASETS = datasets_by("created")
FIND_DATASET = f"SELECT {columns(Dataset)} FROM dataset WHERE dataset_id = $1 AND tenant = $2"
LIST_SUITES = f"SELECT {columns(Suite)} FROM suite ORDER BY is_benchmark DESC, name"
FIND_POLICY = "SELECT detail FROM gate_policy"
FIND_BASE_DETAIL = "SELECT detail FROM base_model WHERE name = $1 AND base_sha = $2"
BASE_COLUMNS = columns(RegisteredBase)
LIST_BASES = f"SELECT {BASE_COLUMNS} FROM base_model WHERE name > $1 ORDER BY name LIMIT $2"
FIND_BASE_OF_FILES = f"SELECT {BASE_COLUMNS} FROM base_model WHERE base_sha = $1 ORDER BY name LIMIT 1"
FIND_BASE = f"SELECT {BASE_COLUMNS} FROM base_model WHERE name = $1"
MODEL_COLUMNS = columns(ModelVersion)
MODEL_ORDERS: Mapping[ModelOrder, Order] = {
    "created": NEWEST,
    "name": Order("lower(full_name)", is_rising=True),
}


def models_by(name: ModelOrder) -> str:
    order = MODEL_ORDERS[name]
    return f"""
        SELECT {MODEL_COLUMNS} FROM model
         WHERE tenant = $1 AND ($2::text IS NULL OR base_model = $2) AND ($3::text IS NULL OR dataset_version = $3)
           AND ($4::text IS NULL OR base_sha = $4) AND {order.after("$5", "model", "model_id")}
           AND ($6::text[] IS NULL OR stage = ANY ($6))
           AND ($7::text[] IS NULL OR concat_ws(' ', full_name, model_id, job_id, stage) ILIKE ALL ($7))
         {order.by("model_id")} LIMIT $8"""


LIST_MODELS = models_by("created")
VERSIONS_NAMED = "SELECT model_id FROM model WHERE tenant = $1 AND (model_id = $2 OR full_name = $2) LIMIT 2"
FIND_MODEL = f"""
    SELECT {MODEL_COLUMNS} FROM model WHERE tenant = $1 AND (model_id = $2 OR full_name = $2)
     ORDER BY created_at DESC LIMIT 1"""
DIGEST_OF_BUNDLE = """
    SELECT digest FROM model
     WHERE tenant = $1 AND job_id = $2 AND detail -> 'bundle' ->> 'manifest_sha256' = $3 AND stage <> 'archived'
     LIMIT 1"""
FIND_MODEL_OF_BUNDLE = f"""
    SELECT {MODEL_COLUMNS} FROM model
     WHERE tenant = $1 AND job_id = $2 AND detail -> 'bundle' ->> 'manifest_sha256' = $3 LIMIT 1"""
EVALUATION_COLUMNS = columns(Evaluation)
FIND_EVALUATION = f"""
    SELECT {EVALUATION_COLUMNS} FROM evaluation
     WHERE model_id = $1 ORDER BY number DESC, created_at DESC LIMIT 1"""
GET_EVALUATION = f"SELECT {EVALUATION_COLUMNS} FROM evaluation WHERE eval_id = $1"
ROUTE_COLUMNS = columns(Route)
FIND_ROUTE = f"SELECT {ROUTE_COLUMNS} FROM route WHERE tenant = $1 AND slot = $2"
IS_ROUTE_EXPECTED = """
    SELECT EXISTS (SELECT FROM route WHERE tenant = $1 AND slot = $2 AND state = 'pending')
        OR (EXISTS (SELECT FROM job WHERE tenant = $1 AND fine_tuned_model = $2 AND is_deployed)
            AND NOT EXISTS (SELECT FROM route WHERE tenant = $1 AND slot = $2))"""
IS_ROUTE_IDLE = """
    SELECT EXISTS (SELECT FROM route WHERE tenant = $1 AND slot = $2 AND state = 'ready' AND replicas = '[]')"""
ROUTE_ORDERS: Mapping[RouteOrder, Order] = {
    "slot": Order("slot", is_rising=True),
    "changed": Order("updated_at"),
}


def routes_by(name: RouteOrder) -> str:
    order = ROUTE_ORDERS[name]
    return f"""
        SELECT {ROUTE_COLUMNS} FROM route
         WHERE tenant = $1 AND {order.after("$2", "route", "slot")} AND ($3::text[] IS NULL OR state = ANY ($3))
           AND ($4::text[] IS NULL
                OR concat_ws(' ', slot, model_id, (SELECT full_name FROM model
                                                    WHERE model.model_id = route.model_id AND model.tenant = $1))
                   ILIKE ALL ($4))
         {order.by("slot")} LIMIT $5"""


LIST_ROUTES = routes_by("slot")
READY_REPLICAS_OF_BASE = f"""
    SELECT {columns(Replica)} FROM replica
     WHERE base_model = $1 AND is_ready AND base_sha = (SELECT base_sha FROM base_model WHERE name = $1)"""
TEMPLATE_OF_ROUTE = """
    SELECT b.detail ->> 'template_sha256' FROM route r JOIN model m USING (model_id)
      JOIN base_model b ON b.name = m.base_model WHERE r.tenant = $1 AND r.slot = $2"""
TEMPLATE_OF_BASE = "SELECT detail ->> 'template_sha256' FROM base_model WHERE name = $1"
READY_INCARNATIONS = "SELECT replica_id, incarnation FROM replica WHERE is_ready"
LIST_POOLS = "SELECT detail FROM pool ORDER BY name"
LIST_KAFKA_USERS = f"SELECT {columns(KafkaUser)} FROM kafka_user WHERE name > $1 ORDER BY name LIMIT $2"
FIND_OUTCOME = f"SELECT {columns(Outcome)} FROM outcome WHERE causation_id = $1"
REFUSAL_COLUMNS = columns(Refusal)
LIST_REFUSALS = f"""
    SELECT {REFUSAL_COLUMNS} FROM refusal WHERE tenant = $1 AND ($2::bigint IS NULL OR id < $2)
     ORDER BY id DESC LIMIT $3"""
HAS_REFUSAL = "SELECT EXISTS (SELECT FROM refusal WHERE tenant = $1 AND id = $2)"


async def find_job(source: Source, job_id: str, tenant: str) -> Job | None:
    return await find(Job, source, FIND_JOB, job_id, tenant)


async def has_event(database: Database, job_id: str, number: int | None) -> bool:
    return bool(await database.fetchval(HAS_EVENT, job_id, number))


async def events_before(
    database: Database, job_id: str, *, before: int | None, limit: int, types: Sequence[str] = ()
) -> list[JobEvent]:
    """Return events of these types, or of all, the newest first."""
    return await select(JobEvent, database, EVENTS_BEFORE, job_id, before, types or None, limit)


async def list_types_of_events(database: Database, job_id: str) -> list[str]:
    """Return the types in the timeline of the job, by name."""
    return [row["type"] for row in await database.fetch(TYPES_OF_EVENTS, job_id)]


async def events_after(database: Database, job_id: str, *, after: int, limit: int = 200) -> list[JobEvent]:
    return await select(JobEvent, database, EVENTS_AFTER, job_id, after, limit)


async def list_checkpoints(
    source: Source, job_id: str, tenant: str, *, before: tuple[int, int] | None, limit: int
) -> list[Checkpoint]:
    """Return verified checkpoints, the newest first. `before`: the attempt and step that a page begins after."""
    attempt, step = before or (None, None)
    return await select(Checkpoint, source, LIST_CHECKPOINTS, job_id, tenant, attempt, step, limit)


async def find_checkpoint(
    source: Source, job_id: str, tenant: str, attempt: int, step: int
) -> Checkpoint | None:
    return await find(Checkpoint, source, FIND_CHECKPOINT, job_id, tenant, attempt, step)


async def has_checkpoint(database: Database, job_id: str, tenant: str, attempt: int, step: int) -> bool:
    return bool(await database.fetchval(HAS_CHECKPOINT, job_id, tenant, attempt, step))


async def list_steps(database: Database, job_id: str, *, after: int, limit: int) -> list[Step]:
    return await select(Step, database, LIST_STEPS, job_id, after, limit)


async def steps_with_validation(
    database: Database, job_id: str, *, after: int, limit: int
) -> list[MeasuredStep]:
    return await select(MeasuredStep, database, LIST_STEPS_WITH_VALIDATION, job_id, after, limit)


async def recorded_steps(database: Database, job_id: str) -> RecordedSteps | None:
    return await find(RecordedSteps, database, RECORDED_STEPS, job_id)


async def find_dataset(source: Source, dataset_id: str, tenant: str) -> Dataset | None:
    return await find(Dataset, source, FIND_DATASET, dataset_id, tenant)


async def find_same_dataset(source: Source, tenant: str, spec: DatasetSpec) -> Dataset | None:
    """Return the newest dataset that was made of the same files, for the same base model and by the same policy."""
    policy = spec.policy.model_dump(mode="json")
    return await find(Dataset, source, SAME_DATASET, tenant, digests_of(spec), policy, spec.base_sha)


async def list_datasets(
    database: Database,
    tenant: str,
    *,
    after: str | None,
    limit: int,
    only: ListFilter = EVERYTHING,
    order: DatasetOrder = "created",
) -> list[Dataset]:
    """Words of `only` are searched in the id and the name of the training file."""
    return await select(Dataset, database, datasets_by(order), tenant, after, *only.values, limit)


async def find_tenant_of_dataset(source: Source, dataset_id: str) -> str | None:
    tenant: str | None = await source.fetchval(TENANT_OF_DATASET, dataset_id)
    return tenant


async def find_policy_of_dataset(source: Source, dataset_id: str, tenant: str) -> DatasetPolicy | None:
    """Return the policy that the dataset was asked for with; None where nobody asked for it here."""
    policy = await source.fetchval(POLICY_OF_DATASET, dataset_id, tenant)
    return None if policy is None else DatasetPolicy.model_validate(policy)


async def jobs_of_dataset(conn: Connection, dataset_id: str, tenant: str) -> list[str]:
    return [row["job_id"] for row in await conn.fetch(JOBS_OF_DATASET, dataset_id, tenant)]


async def find_answer(conn: Connection, dataset_id: str, tenant: str) -> DatasetAnswer | None:
    answer = await conn.fetchval(FIND_ANSWER, dataset_id, tenant)
    return None if answer is None else DatasetAnswer.model_validate(answer)


async def list_suites(source: Source) -> list[Suite]:
    return await select(Suite, source, LIST_SUITES)


async def find_gate_policy(conn: Connection) -> Policy | None:
    detail = await conn.fetchval(FIND_POLICY)
    return None if detail is None else read(Policy, detail)


async def list_pools(source: Source) -> list[PoolCapacityChanged]:
    """What each pool's newest fact said."""
    return [PoolCapacityChanged.model_validate(row["detail"]) for row in await source.fetch(LIST_POOLS)]


async def find_base_detail(conn: Connection, name: str, base_sha: str) -> BaseModelDetail | None:
    """Return what is known of the base model; None where the name is another model's by now."""
    detail = await conn.fetchval(FIND_BASE_DETAIL, name, base_sha)
    return None if detail is None else BaseModelDetail.model_validate(detail)


async def find_base(database: Database, name: str) -> RegisteredBase | None:
    return await find(RegisteredBase, database, FIND_BASE, name)


async def find_base_of_files(database: Database, base_sha: str) -> RegisteredBase | None:
    """Return the base model that has these files now."""
    return await find(RegisteredBase, database, FIND_BASE_OF_FILES, base_sha)


async def list_bases(database: Database, *, after: str, limit: int) -> list[RegisteredBase]:
    return await select(RegisteredBase, database, LIST_BASES, after, limit)


async def find_model(source: Source, tenant: str, name: str) -> ModelVersion | None:
    """The newest version of the name, or the one with that id."""
    return await find(ModelVersion, source, FIND_MODEL, tenant, name)


async def find_digest_of_bundle(source: Source, tenant: str, job_id: str, manifest_sha256: str) -> str | None:
    """Return the digest of the model version that the bundle has become; None where it has become none."""
    digest: str | None = await source.fetchval(DIGEST_OF_BUNDLE, tenant, job_id, manifest_sha256)
    return digest


async def find_model_of_bundle(
    source: Source, tenant: str, job_id: str, manifest_sha256: str
) -> ModelVersion | None:
    return await find(ModelVersion, source, FIND_MODEL_OF_BUNDLE, tenant, job_id, manifest_sha256)


async def list_models(
    database: Database,
    tenant: str,
    *,
    base_model: str | None,
    dataset_version: str | None,
    base_sha: str | None,
    after: str | None,
    limit: int,
    only: ListFilter = EVERYTHING,
    order: ModelOrder = "created",
) -> list[ModelVersion]:
    """Words of `only` are searched in the name, the id, the job and the stage; its states are stages."""
    of_lineage = base_model, dataset_version, base_sha
    return await select(
        ModelVersion, database, models_by(order), tenant, *of_lineage, after, *only.values, limit
    )


async def versions_named(database: Database, tenant: str, name: str) -> list[str]:
    """Ids of at most two of them."""
    return [row["model_id"] for row in await database.fetch(VERSIONS_NAMED, tenant, name)]


async def find_evaluation(database: Database, model_id: str) -> Evaluation | None:
    """The newest one of the model."""
    return await find(Evaluation, database, FIND_EVALUATION, model_id)


async def get_evaluation(database: Database, eval_id: str) -> Evaluation | None:
    return await find(Evaluation, database, GET_EVALUATION, eval_id)


async def find_route(database: Database, tenant: str, slot: str) -> Route | None:
    return await find(Route, database, FIND_ROUTE, tenant, slot)


async def list_routes(
    database: Database,
    tenant: str,
    *,
    after: str | None,
    limit: int,
    only: ListFilter = EVERYTHING,
    order: RouteOrder = "slot",
) -> list[Route]:
    """Words of `only` are searched in the slot and in the id and name of its model."""
    return await select(Route, database, routes_by(order), tenant, after, *only.values, limit)


async def is_route_idle(database: Database, tenant: str, slot: str) -> bool:
    return bool(await database.fetchval(IS_ROUTE_IDLE, tenant, slot))


async def is_route_expected(database: Database, tenant: str, slot: str) -> bool:
    return bool(await database.fetchval(IS_ROUTE_EXPECTED, tenant, slot))


async def ready_replicas_of_base(database: Database, name: str) -> list[Replica]:
    return await select(Replica, database, READY_REPLICAS_OF_BASE, name)


async def ready_incarnations(database: Database) -> set[tuple[str, str]]:
    """Pairs of replica and incarnation."""
    rows = await database.fetch(READY_INCARNATIONS)
    return {(row["replica_id"], row["incarnation"]) for row in rows}


async def find_template(database: Database, tenant: str, name: str) -> str | None:
    """sha256 of the chat template of a slot's model, else of a base model."""
    template: str | None = await database.fetchval(TEMPLATE_OF_ROUTE, tenant, name)
    return template or await database.fetchval(TEMPLATE_OF_BASE, name)


async def list_kafka_users(database: Database, *, after: str, limit: int) -> list[KafkaUser]:
    return await select(KafkaUser, database, LIST_KAFKA_USERS, after, limit)


async def find_outcome(database: Database, causation_id: str) -> Outcome | None:
    return await find(Outcome, database, FIND_OUTCOME, causation_id)


async def list_refusals(database: Database, tenant: str, *, before: int | None, limit: int) -> list[Refusal]:
    return await select(Refusal, database, LIST_REFUSALS, tenant, before, limit)


async def has_refusal(database: Database, tenant: str, number: int | None) -> bool:
    return bool(await database.fetchval(HAS_REFUSAL, tenant, number))
