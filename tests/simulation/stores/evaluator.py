"""`services/evaluator/store.py` in memory."""

from schemas.base import BundleRef
from schemas.job import Artifact
from schemas.model import ModelRegistered
from services.evaluator.model import Baseline, Evaluation, EvaluationState, GateResult, Pool, Replica, Suite
from shared.errors import Rejected, StaleWrite
from tests.simulation.fast import replace
from tests.simulation.tables import Tables


async def lock_job(conn: Tables, job_id: str) -> None:
    conn.lock_name(f"job:{job_id}")


async def save_artifact(conn: Tables, artifact: Artifact) -> None:
    conn.put("artifact", artifact.job_id, artifact)


async def find_artifact(conn: Tables, job_id: str) -> Artifact | None:
    return conn.get("artifact", job_id)  # type: ignore[no-any-return]


async def save_version(conn: Tables, version: ModelRegistered) -> None:
    conn.put("version", version.model_id, version)


async def find_version(conn: Tables, model_id: str, tenant: str) -> ModelRegistered | None:
    version: ModelRegistered | None = conn.get("version", model_id)
    return version if version and version.tenant == tenant else None


async def archive_version(conn: Tables, model_id: str) -> None:
    conn.put("archived", model_id, True)


async def is_archived(conn: Tables, model_id: str) -> bool:
    return conn.get("archived", model_id) is not None


async def find_version_of(conn: Tables, job_id: str, bundle: BundleRef) -> ModelRegistered | None:
    return next(
        (each for each in conn.rows("version") if each.job_id == job_id and each.bundle == bundle), None
    )


async def add_evaluation(conn: Tables, evaluation: Evaluation) -> bool:
    if conn.get("evaluation", evaluation.eval_id) is not None:
        return False
    conn.put("evaluation", evaluation.eval_id, evaluation)
    return True


async def next_number(conn: Tables, job_id: str) -> int:
    return 1 + max(
        (each.number for each in conn.rows("evaluation") if each.artifact.job_id == job_id), default=0
    )


async def save_evaluation(conn: Tables, evaluation: Evaluation) -> None:
    if conn.get("evaluation", evaluation.eval_id).revision != evaluation.revision:
        raise StaleWrite(f"evaluation {evaluation.eval_id} changed")
    conn.put("evaluation", evaluation.eval_id, replace(evaluation, revision=evaluation.revision + 1))


async def get_evaluation(conn: Tables, eval_id: str) -> Evaluation:
    evaluation: Evaluation | None = conn.get("evaluation", eval_id)
    if evaluation is None:
        raise Rejected(f"evaluation {eval_id} does not exist")
    return evaluation


async def find_evaluation(conn: Tables, eval_id: str) -> Evaluation | None:
    return conn.get("evaluation", eval_id)  # type: ignore[no-any-return]


async def find_waiting(conn: Tables, job_id: str) -> Evaluation | None:
    return next(
        (
            each
            for each in conn.rows("evaluation")
            if each.artifact.job_id == job_id and each.state is EvaluationState.WAITING
        ),
        None,
    )


async def is_running(conn: Tables, model_id: str) -> bool:
    return any(
        each.state is EvaluationState.RUNNING and each.version and each.version.model_id == model_id
        for each in conn.rows("evaluation")
    )


async def list_newest_suites(conn: Tables) -> tuple[Suite, ...]:
    return tuple(conn.rows("suite"))


async def add_baseline(conn: Tables, baseline: Baseline) -> bool:
    raise AssertionError("nothing is measured here")


async def list_baselines(
    conn: Tables, base_sha: str, template_sha256: str
) -> dict[tuple[str, str], Baseline]:
    return {}


async def add_verdict(conn: Tables, result: GateResult) -> None:
    if conn.get("verdict", result.result_key) is None:
        conn.put("verdict", result.result_key, result)


async def find_verdict(conn: Tables, result_key: str) -> GateResult | None:
    return conn.get("verdict", result_key)  # type: ignore[no-any-return]


async def list_replicas(conn: Tables, base_model: str, base_sha: str) -> tuple[Replica, ...]:
    """Nobody computes answers here."""
    return ()


async def find_pool(conn: Tables, name: str) -> Pool | None:
    """No devices are leased here."""
    return None


async def forget_work(conn: Tables, eval_id: str) -> bool:
    """Nothing is scored on nodes here."""
    return False
