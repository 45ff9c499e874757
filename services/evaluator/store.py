"""SQL of the evaluator; the only file that knows column names."""

from datetime import datetime
from typing import Any

from schemas.base import BundleRef
from schemas.deployment import CandidateReady, ReplicaReady
from schemas.evaluation import GatePolicyPublished, RegisteredSuite, StageResult
from schemas.job import Artifact
from schemas.model import ModelRegistered
from services.evaluator.model import (
    Baseline,
    Evaluation,
    EvaluationState,
    GateResult,
    Place,
    Replica,
    Suite,
)
from shared.errors import Rejected, StaleWrite
from shared.postgres.database import Connection, lock_name

SAVE_ARTIFACT = """
    INSERT INTO artifact (job_id, tenant, body) VALUES ($1, $2, $3)
    ON CONFLICT (job_id) DO UPDATE SET body = $3"""
FIND_ARTIFACT = "SELECT body FROM artifact WHERE job_id = $1"
SAVE_VERSION = """
    INSERT INTO model_version (model_id, tenant, job_id, body) VALUES ($1, $2, $3, $4)
    ON CONFLICT (model_id) DO UPDATE SET body = $4"""
FIND_VERSION = "SELECT body FROM model_version WHERE model_id = $1 AND tenant = $2"
ARCHIVE_VERSION = "UPDATE model_version SET is_archived = true WHERE model_id = $1"
IS_ARCHIVED = "SELECT is_archived FROM model_version WHERE model_id = $1"
LIST_VERSIONS = "SELECT body FROM model_version WHERE job_id = $1"
_EVALUATION = "eval_id, number, state, artifact, version, stages, reason, revision"
ADD_EVALUATION = """
    INSERT INTO evaluation (eval_id, job_id, model_id, number, state, artifact, version, stages, reason, revision)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0) ON CONFLICT (eval_id) DO NOTHING RETURNING true"""
NEXT_NUMBER = "SELECT coalesce(max(number), 0) + 1 FROM evaluation WHERE job_id = $1"
SAVE_EVALUATION = """
    UPDATE evaluation
       SET state = $2, model_id = $3, version = $4, stages = $5, reason = $6, revision = revision + 1
     WHERE eval_id = $1 AND revision = $7 RETURNING revision"""
GET_EVALUATION = f"SELECT {_EVALUATION} FROM evaluation WHERE eval_id = $1"
FIND_WAITING = f"SELECT {_EVALUATION} FROM evaluation WHERE job_id = $1 AND state = 'waiting'"
IS_RUNNING = "SELECT EXISTS (SELECT FROM evaluation WHERE model_id = $1 AND state = 'running')"
ADD_SUITE = """
    INSERT INTO suite (name, digest, kind, file, num_fewshot, examples, rows, margin_points, expects, registered_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (name, digest) DO UPDATE SET file = $4, examples = $6, registered_at = $10"""
_SUITE = "name, digest, kind, file, num_fewshot, examples, rows, margin_points, expects"
LIST_NEWEST_SUITES = f"""
    SELECT DISTINCT ON (name, kind IS NULL) {_SUITE} FROM suite
     ORDER BY name, kind IS NULL, registered_at DESC"""
LIST_REGISTERED = """
    SELECT DISTINCT ON (name, kind IS NULL) name, digest, file, examples, rows, registered_at,
           CASE WHEN kind IS NOT NULL THEN 'benchmark' WHEN expects = 'answer' THEN 'over_refusal'
                ELSE 'safety' END AS stage
      FROM suite ORDER BY name, kind IS NULL, registered_at DESC"""
SAVE_POLICY = """
    INSERT INTO policy (body) VALUES ($1)
    ON CONFLICT (singleton) DO UPDATE SET body = $1 WHERE policy.body <> $1 RETURNING true"""
HAS_SUITE = "SELECT EXISTS (SELECT FROM suite WHERE name = $1 AND (kind IS NULL) = $2)"
ADD_BASELINE = """
    INSERT INTO baseline (base_sha, harness_version, template_sha256, suite_digest, name, metric, value, count,
                          key, sha256)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING RETURNING true"""
LIST_BASELINES = """
    SELECT base_sha, harness_version, template_sha256, suite_digest, name, metric, value, count, key, sha256
      FROM baseline WHERE base_sha = $1 AND template_sha256 = $2"""
ADD_VERDICT = "INSERT INTO verdict (result_key, result) VALUES ($1, $2) ON CONFLICT (result_key) DO NOTHING"
FIND_VERDICT = "SELECT result FROM verdict WHERE result_key = $1"
SAVE_REPLICA = """
    INSERT INTO replica (replica_id, base_model, base_sha, incarnation, engine, device)
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (replica_id, base_model)
    DO UPDATE SET base_sha = $3, incarnation = $4, engine = $5, device = $6"""
LOSE_REPLICA = "DELETE FROM replica WHERE replica_id = $1 AND incarnation = $2"
LIST_REPLICAS = """
    SELECT replica_id, incarnation, engine, device FROM replica
     WHERE base_model = $1 AND base_sha = $2 ORDER BY replica_id"""
ASK_FOR_PLACE = """
    INSERT INTO place (eval_id) VALUES ($1)
    ON CONFLICT (eval_id) DO UPDATE SET problem = '', replica_id = NULL"""
FILL_PLACE = """
    UPDATE place SET replica_id = $2, incarnation = $3, url = $4, served_name = $5, served_base = $6
     WHERE eval_id = $1"""
REFUSE_PLACE = "UPDATE place SET problem = $2 WHERE eval_id = $1 AND replica_id IS NULL"
FIND_PLACE = """
    SELECT place.problem, place.replica_id, place.url, place.served_name, place.served_base,
           (SELECT engine FROM replica WHERE replica.replica_id = place.replica_id
               AND replica.incarnation = place.incarnation LIMIT 1) AS engine
      FROM place WHERE eval_id = $1 AND (replica_id IS NOT NULL OR problem <> '')"""
FORGET_PLACE = "DELETE FROM place WHERE eval_id = $1"


async def lock_job(conn: Connection, job_id: str) -> None:
    """Facts of one job come on two topics; the one that comes second must see the first."""
    await lock_name(conn, job_id)


async def save_artifact(conn: Connection, artifact: Artifact) -> None:
    await conn.execute(SAVE_ARTIFACT, artifact.job_id, artifact.tenant, artifact.model_dump(mode="json"))


async def find_artifact(conn: Connection, job_id: str) -> Artifact | None:
    body = await conn.fetchval(FIND_ARTIFACT, job_id)
    return None if body is None else Artifact.model_validate(body)


async def save_version(conn: Connection, version: ModelRegistered) -> None:
    body = version.model_dump(mode="json")
    await conn.execute(SAVE_VERSION, version.model_id, version.tenant, version.job_id, body)


async def find_version(conn: Connection, model_id: str, tenant: str) -> ModelRegistered | None:
    body = await conn.fetchval(FIND_VERSION, model_id, tenant)
    return None if body is None else ModelRegistered.model_validate(body)


async def archive_version(conn: Connection, model_id: str) -> None:
    await conn.execute(ARCHIVE_VERSION, model_id)


async def is_archived(conn: Connection, model_id: str) -> bool:
    return bool(await conn.fetchval(IS_ARCHIVED, model_id))


async def find_version_of(conn: Connection, job_id: str, bundle: BundleRef) -> ModelRegistered | None:
    """The version that was made of this bundle."""
    versions = [
        ModelRegistered.model_validate(row["body"]) for row in await conn.fetch(LIST_VERSIONS, job_id)
    ]
    return next((version for version in versions if version.bundle == bundle), None)


async def add_evaluation(conn: Connection, evaluation: Evaluation) -> bool:
    """Whether it is new."""
    return bool(
        await conn.fetchval(
            ADD_EVALUATION,
            evaluation.eval_id,
            evaluation.artifact.job_id,
            evaluation.version.model_id if evaluation.version else None,
            evaluation.number,
            evaluation.state,
            evaluation.artifact.model_dump(mode="json"),
            _version_body(evaluation),
            _stage_bodies(evaluation),
            evaluation.reason,
        )
    )


async def next_number(conn: Connection, job_id: str) -> int:
    """Of the job's evaluation to come; the caller holds the job's lock."""
    return int(await conn.fetchval(NEXT_NUMBER, job_id))


async def save_evaluation(conn: Connection, evaluation: Evaluation) -> None:
    """Raises StaleWrite if someone wrote it since it was read."""
    revision = await conn.fetchval(
        SAVE_EVALUATION,
        evaluation.eval_id,
        evaluation.state,
        evaluation.version.model_id if evaluation.version else None,
        _version_body(evaluation),
        _stage_bodies(evaluation),
        evaluation.reason,
        evaluation.revision,
    )
    if revision is None:
        raise StaleWrite(f"evaluation {evaluation.eval_id} changed since revision {evaluation.revision}")


async def get_evaluation(conn: Connection, eval_id: str) -> Evaluation:
    row = await conn.fetchrow(GET_EVALUATION, eval_id)
    if row is None:
        raise Rejected(f"evaluation {eval_id} does not exist")
    return _evaluation(row)


async def find_evaluation(conn: Connection, eval_id: str) -> Evaluation | None:
    row = await conn.fetchrow(GET_EVALUATION, eval_id)
    return None if row is None else _evaluation(row)


async def find_waiting(conn: Connection, job_id: str) -> Evaluation | None:
    row = await conn.fetchrow(FIND_WAITING, job_id)
    return None if row is None else _evaluation(row)


async def is_running(conn: Connection, model_id: str) -> bool:
    return bool(await conn.fetchval(IS_RUNNING, model_id))


async def add_suite(conn: Connection, suite: Suite, *, at: datetime) -> None:
    """Registering the same suite again makes it the newest of its name."""
    await conn.execute(
        ADD_SUITE,
        suite.name,
        suite.digest,
        suite.kind,
        suite.file.model_dump(mode="json"),
        suite.num_fewshot,
        suite.examples and suite.examples.model_dump(mode="json"),
        suite.rows,
        suite.margin_points,
        suite.expects,
        at,
    )


async def has_suite(conn: Connection, name: str, *, is_safety: bool) -> bool:
    """Whether any suite of that name and sort was ever registered."""
    return bool(await conn.fetchval(HAS_SUITE, name, is_safety))


async def list_newest_suites(conn: Connection) -> tuple[Suite, ...]:
    """The newest of each name, which replaces the earlier ones."""
    rows = await conn.fetch(LIST_NEWEST_SUITES)
    return tuple(Suite.model_validate(dict(row)) for row in rows)


async def list_registered(conn: Connection) -> tuple[RegisteredSuite, ...]:
    """The newest suite of each name, as others are told of it."""
    return tuple(RegisteredSuite.model_validate(dict(row)) for row in await conn.fetch(LIST_REGISTERED))


async def save_policy(conn: Connection, policy: GatePolicyPublished) -> bool:
    """Whether it differs from what was published last."""
    return bool(await conn.fetchval(SAVE_POLICY, policy.model_dump(mode="json")))


async def add_baseline(conn: Connection, baseline: Baseline) -> bool:
    """Whether it is the first of its identity."""
    return bool(await conn.fetchval(ADD_BASELINE, *baseline.model_dump().values()))


async def list_baselines(
    conn: Connection, base_sha: str, template_sha256: str
) -> dict[tuple[str, str], Baseline]:
    """By suite digest and harness version."""
    rows = await conn.fetch(LIST_BASELINES, base_sha, template_sha256)
    baselines = [Baseline.model_validate(dict(row)) for row in rows]
    return {(baseline.suite_digest, baseline.harness_version): baseline for baseline in baselines}


async def save_replica(conn: Connection, ready: ReplicaReady) -> None:
    replica = ready.replica
    await conn.execute(
        SAVE_REPLICA,
        replica.replica_id,
        ready.base_model,
        ready.base_sha,
        replica.incarnation,
        ready.engine,
        ready.device,
    )


async def lose_replica(conn: Connection, replica_id: str, incarnation: str) -> None:
    await conn.execute(LOSE_REPLICA, replica_id, incarnation)


async def list_replicas(conn: Connection, base_model: str, base_sha: str) -> tuple[Replica, ...]:
    """The ready ones of this base model; those of its full fine-tunes go by other names."""
    return tuple(Replica(**dict(row)) for row in await conn.fetch(LIST_REPLICAS, base_model, base_sha))


async def ask_for_place(conn: Connection, eval_id: str) -> None:
    """From now on an answer is kept."""
    await conn.execute(ASK_FOR_PLACE, eval_id)


async def fill_place(conn: Connection, ready: CandidateReady) -> None:
    """Nothing happens where nobody waits for it."""
    replica = ready.replica
    await conn.execute(
        FILL_PLACE,
        ready.eval_id,
        replica.replica_id,
        replica.incarnation,
        replica.url,
        ready.served_name,
        ready.served_base,
    )


async def refuse_place(conn: Connection, eval_id: str, problem: str) -> None:
    """Nothing happens where nobody waits for it."""
    await conn.execute(REFUSE_PLACE, eval_id, problem)


async def find_place(conn: Connection, eval_id: str) -> Place | None:
    """None while there is no answer. Its engine is empty once the replica is lost."""
    row = await conn.fetchrow(FIND_PLACE, eval_id)
    return None if row is None else Place(**{name: value or "" for name, value in row.items()})


async def forget_place(conn: Connection, eval_id: str) -> None:
    await conn.execute(FORGET_PLACE, eval_id)


async def add_verdict(conn: Connection, result: GateResult) -> None:
    await conn.execute(ADD_VERDICT, result.result_key, result.model_dump(mode="json"))


async def find_verdict(conn: Connection, result_key: str) -> GateResult | None:
    body = await conn.fetchval(FIND_VERDICT, result_key)
    return None if body is None else GateResult.model_validate(body)


def _version_body(evaluation: Evaluation) -> dict[str, Any] | None:
    return evaluation.version.model_dump(mode="json") if evaluation.version else None


def _stage_bodies(evaluation: Evaluation) -> list[dict[str, Any]]:
    return [stage.model_dump(mode="json") for stage in evaluation.stages]


def _evaluation(row: Any) -> Evaluation:
    return Evaluation(
        eval_id=row["eval_id"],
        number=row["number"],
        artifact=Artifact.model_validate(row["artifact"]),
        state=EvaluationState(row["state"]),
        version=ModelRegistered.model_validate(row["version"]) if row["version"] else None,
        stages=tuple(StageResult.model_validate(stage) for stage in row["stages"]),
        reason=row["reason"],
        revision=row["revision"],
    )
