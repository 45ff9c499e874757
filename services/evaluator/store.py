"""SQL of the evaluator; the only file that knows column names."""

from datetime import datetime

from schemas.base import BundleRef
from schemas.deployment import CandidateReady, ReplicaReady
from schemas.evaluation import GatePolicyPublished, RegisteredSuite
from schemas.job import Artifact
from schemas.model import ModelRegistered
from services.evaluator.model import (
    Baseline,
    Evaluation,
    GateResult,
    Host,
    Pool,
    Replica,
    ScoringNode,
    Suite,
)
from services.evaluator.protocol import ScoringReport, Work
from shared.errors import Rejected, StaleWrite
from shared.postgres.database import Connection, lock_name
from shared.postgres.rows import Columns, read

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
EVALUATION = Columns("eval_id, number, artifact")
PROGRESS = Columns("state, version, checks, reason")
ADD_EVALUATION = f"""
    INSERT INTO evaluation ({EVALUATION.names}, {PROGRESS.names}, job_id, model_id, revision)
    VALUES ({EVALUATION.parameters()}, {PROGRESS.parameters(4)}, $8, $9, 0)
    ON CONFLICT (eval_id) DO NOTHING RETURNING true"""
NEXT_NUMBER = "SELECT coalesce(max(number), 0) + 1 FROM evaluation WHERE job_id = $1"
SAVE_EVALUATION = f"""
    UPDATE evaluation SET model_id = $3, ({PROGRESS.names}) = ROW({PROGRESS.parameters(4)}), revision = revision + 1
     WHERE eval_id = $1 AND revision = $2 RETURNING revision"""
EVALUATIONS = f"SELECT {EVALUATION.selected}, {PROGRESS.selected}, revision FROM evaluation"
FIND_EVALUATION = f"{EVALUATIONS} WHERE eval_id = $1"
FIND_WAITING = f"{EVALUATIONS} WHERE job_id = $1 AND state = 'waiting'"
IS_RUNNING = "SELECT EXISTS (SELECT FROM evaluation WHERE model_id = $1 AND state = 'running')"
SUITE = Columns("name, digest, kind, file, num_fewshot, examples, rows, margin_points, expects")
ADD_SUITE = f"""
    INSERT INTO suite ({SUITE.names}, registered_at) VALUES ({SUITE.parameters()}, $10)
    ON CONFLICT (name, digest) DO UPDATE SET file = $4, examples = $6, registered_at = $10"""
LIST_NEWEST_SUITES = f"""
    SELECT DISTINCT ON (name, kind IS NULL) {SUITE.selected} FROM suite
     ORDER BY name, kind IS NULL, registered_at DESC"""
LIST_REGISTERED = """
    SELECT DISTINCT ON (name, kind IS NULL) name, digest, file, examples, rows, registered_at,
           CASE WHEN kind IS NOT NULL THEN 'benchmark' WHEN expects = 'answer' THEN 'over_refusal'
                ELSE 'safety' END AS check
      FROM suite ORDER BY name, kind IS NULL, registered_at DESC"""
SAVE_POLICY = """
    INSERT INTO policy (body) VALUES ($1)
    ON CONFLICT (singleton) DO UPDATE SET body = $1 WHERE policy.body <> $1 RETURNING true"""
HAS_SUITE = "SELECT EXISTS (SELECT FROM suite WHERE name = $1 AND (kind IS NULL) = $2)"
BASELINE = Columns(
    "base_sha, harness_version, template_sha256, suite_digest, name, metric, value, count, key, sha256"
)
ADD_BASELINE = f"""
    INSERT INTO baseline ({BASELINE.names}) VALUES ({BASELINE.parameters()})
    ON CONFLICT DO NOTHING RETURNING true"""
LIST_BASELINES = f"SELECT {BASELINE.selected} FROM baseline WHERE base_sha = $1 AND template_sha256 = $2"
ADD_VERDICT = "INSERT INTO verdict (result_key, result) VALUES ($1, $2) ON CONFLICT (result_key) DO NOTHING"
FIND_VERDICT = "SELECT result FROM verdict WHERE result_key = $1"
READY = Columns(
    "replica_id=replica.replica_id, base_model, base_sha, incarnation=replica.incarnation, engine, device"
)
SAVE_REPLICA = f"""
    INSERT INTO replica ({READY.names}) VALUES ({READY.parameters()})
    ON CONFLICT (replica_id, base_model) DO UPDATE SET {READY.excluded}"""
LOSE_REPLICA = "DELETE FROM replica WHERE replica_id = $1 AND incarnation = $2"
LIST_REPLICAS = """
    SELECT replica_id, incarnation, engine, device FROM replica
     WHERE base_model = $1 AND base_sha = $2 ORDER BY replica_id"""
ASK_FOR_HOST = """
    INSERT INTO host (eval_id) VALUES ($1)
    ON CONFLICT (eval_id) DO UPDATE SET problem = '', replica_id = NULL"""
LENT = Columns(
    "eval_id, replica_id=replica.replica_id, incarnation=replica.incarnation, url=replica.url, served_name,"
    " served_base"
)
FILL_HOST = f"UPDATE host SET ({LENT.names}) = ROW({LENT.parameters()}) WHERE eval_id = $1"
REFUSE_HOST = "UPDATE host SET problem = $2 WHERE eval_id = $1 AND replica_id IS NULL"
FIND_HOST = """
    SELECT host.problem, host.replica_id, host.url, host.served_name, host.served_base,
           (SELECT engine FROM replica WHERE replica.replica_id = host.replica_id
               AND replica.incarnation = host.incarnation LIMIT 1) AS engine
      FROM host WHERE eval_id = $1 AND (replica_id IS NOT NULL OR problem <> '')"""
FORGET_HOST = "DELETE FROM host WHERE eval_id = $1"
POOL = Columns("name, devices_per_node, device_memory_bytes")
SAVE_POOL = f"""
    INSERT INTO pool ({POOL.names}) VALUES ({POOL.parameters()})
    ON CONFLICT (name) DO UPDATE SET {POOL.excluded}"""
FIND_POOL = f"SELECT {POOL.selected} FROM pool WHERE name = $1"
NODE = Columns("eval_id, work, report, lost_nodes")
# What was reported of other work says nothing of this one.
SAVE_WORK = f"""
    INSERT INTO scoring_node (eval_id, work) VALUES ($1, $2)
    ON CONFLICT (eval_id) DO UPDATE SET work = $2,
        report = CASE WHEN scoring_node.work = $2 THEN scoring_node.report END,
        lost_nodes = CASE WHEN scoring_node.work = $2 THEN scoring_node.lost_nodes ELSE 0 END
    RETURNING {NODE.selected}"""
SAVE_REPORT = f"UPDATE scoring_node SET report = $2 WHERE eval_id = $1 RETURNING {NODE.selected}"
LOSE_NODE = "UPDATE scoring_node SET lost_nodes = lost_nodes + 1 WHERE eval_id = $1 RETURNING lost_nodes"
FIND_NODE = f"SELECT {NODE.selected} FROM scoring_node WHERE eval_id = $1"
LOCK_WORK = "SELECT true FROM scoring_node WHERE eval_id = $1 FOR SHARE"
FORGET_WORK = "DELETE FROM scoring_node WHERE eval_id = $1 RETURNING true"


async def lock_job(conn: Connection, job_id: str) -> None:
    """Lock a job. Its facts come on two topics; the one that comes second must see the first."""
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
    """Return the version that was made of this bundle."""
    versions = [
        ModelRegistered.model_validate(row["body"]) for row in await conn.fetch(LIST_VERSIONS, job_id)
    ]
    return next((version for version in versions if version.bundle == bundle), None)


async def add_evaluation(conn: Connection, evaluation: Evaluation) -> bool:
    """Add an evaluation. Return whether it is new."""
    row = (*EVALUATION.values(evaluation), *PROGRESS.values(evaluation))
    job_id, model_id = evaluation.artifact.job_id, _model_id(evaluation)
    return bool(await conn.fetchval(ADD_EVALUATION, *row, job_id, model_id))


async def next_number(conn: Connection, job_id: str) -> int:
    """Return the number of the job's next evaluation; the caller holds the job's lock."""
    return int(await conn.fetchval(NEXT_NUMBER, job_id))


async def save_evaluation(conn: Connection, evaluation: Evaluation) -> None:
    """Save an evaluation. Raises StaleWrite if someone wrote it since it was read."""
    key = (evaluation.eval_id, evaluation.revision, _model_id(evaluation))
    if await conn.fetchval(SAVE_EVALUATION, *key, *PROGRESS.values(evaluation)) is None:
        raise StaleWrite(f"evaluation {evaluation.eval_id} changed since revision {evaluation.revision}")


async def get_evaluation(conn: Connection, eval_id: str) -> Evaluation:
    evaluation = await find_evaluation(conn, eval_id)
    if evaluation is None:
        raise Rejected(f"evaluation {eval_id} does not exist")
    return evaluation


async def find_evaluation(conn: Connection, eval_id: str) -> Evaluation | None:
    row = await conn.fetchrow(FIND_EVALUATION, eval_id)
    return read(Evaluation, row) if row else None


async def find_waiting(conn: Connection, job_id: str) -> Evaluation | None:
    row = await conn.fetchrow(FIND_WAITING, job_id)
    return read(Evaluation, row) if row else None


async def is_running(conn: Connection, model_id: str) -> bool:
    return bool(await conn.fetchval(IS_RUNNING, model_id))


async def add_suite(conn: Connection, suite: Suite, *, at: datetime) -> None:
    """Add a suite. Registering the same suite again makes it the newest of its name."""
    await conn.execute(ADD_SUITE, *SUITE.values(suite), at)


async def has_suite(conn: Connection, name: str, *, is_safety: bool) -> bool:
    """Return whether any suite of that name and sort was ever registered."""
    return bool(await conn.fetchval(HAS_SUITE, name, is_safety))


async def list_newest_suites(conn: Connection) -> tuple[Suite, ...]:
    """Return the newest suite of each name, which replaces the earlier ones."""
    rows = await conn.fetch(LIST_NEWEST_SUITES)
    return tuple(read(Suite, row) for row in rows)


async def list_registered(conn: Connection) -> tuple[RegisteredSuite, ...]:
    """Return the newest suite of each name, as others hear of it."""
    return tuple(read(RegisteredSuite, row) for row in await conn.fetch(LIST_REGISTERED))


async def save_policy(conn: Connection, policy: GatePolicyPublished) -> bool:
    """Save the policy. Return whether it differs from what was published last."""
    return bool(await conn.fetchval(SAVE_POLICY, policy.model_dump(mode="json")))


async def add_baseline(conn: Connection, baseline: Baseline) -> bool:
    """Add a baseline. Return whether it is the first of its identity."""
    return bool(await conn.fetchval(ADD_BASELINE, *BASELINE.values(baseline)))


async def list_baselines(
    conn: Connection, base_sha: str, template_sha256: str
) -> dict[tuple[str, str], Baseline]:
    """Return the baselines by suite digest and harness version."""
    rows = await conn.fetch(LIST_BASELINES, base_sha, template_sha256)
    baselines = [read(Baseline, row) for row in rows]
    return {(baseline.suite_digest, baseline.harness_version): baseline for baseline in baselines}


async def save_replica(conn: Connection, ready: ReplicaReady) -> None:
    await conn.execute(SAVE_REPLICA, *READY.values(ready))


async def lose_replica(conn: Connection, replica_id: str, incarnation: str) -> None:
    await conn.execute(LOSE_REPLICA, replica_id, incarnation)


async def list_replicas(conn: Connection, base_model: str, base_sha: str) -> tuple[Replica, ...]:
    """Return the ready replicas of this base model; those of its full fine-tunes go by other names."""
    return tuple(read(Replica, row) for row in await conn.fetch(LIST_REPLICAS, base_model, base_sha))


async def ask_for_host(conn: Connection, eval_id: str) -> None:
    """Begin to wait for the candidate to be loaded: from now on an answer is kept."""
    await conn.execute(ASK_FOR_HOST, eval_id)


async def fill_host(conn: Connection, ready: CandidateReady) -> None:
    """Note where the candidate is loaded. Nothing happens where nobody waits for it."""
    await conn.execute(FILL_HOST, *LENT.values(ready))


async def refuse_host(conn: Connection, eval_id: str, problem: str) -> None:
    """Note why no replica loads the candidate. Nothing happens where nobody waits for it."""
    await conn.execute(REFUSE_HOST, eval_id, problem)


async def find_host(conn: Connection, eval_id: str) -> Host | None:
    """Return where the candidate is loaded; None before an answer. Its engine is empty once the replica is lost."""
    row = await conn.fetchrow(FIND_HOST, eval_id)
    return None if row is None else Host(**{name: value or "" for name, value in row.items()})


async def forget_host(conn: Connection, eval_id: str) -> None:
    await conn.execute(FORGET_HOST, eval_id)


async def save_pool(conn: Connection, pool: Pool) -> None:
    await conn.execute(SAVE_POOL, pool.name, pool.devices_per_node, pool.device_memory_bytes)


async def find_pool(conn: Connection, name: str) -> Pool | None:
    row = await conn.fetchrow(FIND_POOL, name)
    return read(Pool, row) if row else None


async def save_work(conn: Connection, work: Work) -> ScoringNode:
    """Write what the evaluation's node shall do; return what is known of it already, if it is the same."""
    row = await conn.fetchrow(SAVE_WORK, work.eval_id, work.model_dump(mode="json"))
    assert row is not None, "it was written"
    return read(ScoringNode, row)


async def save_report(conn: Connection, eval_id: str, report: ScoringReport) -> ScoringNode | None:
    """Keep what the node reports; None where nothing is to be done any more."""
    row = await conn.fetchrow(SAVE_REPORT, eval_id, report.model_dump(mode="json"))
    return read(ScoringNode, row) if row else None


async def lose_node(conn: Connection, eval_id: str) -> int:
    """Count a lost node; return how many were lost with the same work."""
    return await conn.fetchval(LOSE_NODE, eval_id) or 0


async def find_node(conn: Connection, eval_id: str) -> ScoringNode | None:
    row = await conn.fetchrow(FIND_NODE, eval_id)
    return read(ScoringNode, row) if row else None


async def lock_work(conn: Connection, eval_id: str) -> bool:
    """Return whether something is to be scored for the evaluation; nobody ends that within this transaction."""
    return bool(await conn.fetchval(LOCK_WORK, eval_id))


async def forget_work(conn: Connection, eval_id: str) -> bool:
    """Return whether there was any, for a node that may be there."""
    return bool(await conn.fetchval(FORGET_WORK, eval_id))


async def add_verdict(conn: Connection, result: GateResult) -> None:
    await conn.execute(ADD_VERDICT, result.result_key, result.model_dump(mode="json"))


async def find_verdict(conn: Connection, result_key: str) -> GateResult | None:
    body = await conn.fetchval(FIND_VERDICT, result_key)
    return None if body is None else GateResult.model_validate(body)


def _model_id(evaluation: Evaluation) -> str | None:
    return evaluation.version.model_id if evaluation.version else None
