"""From artifact and version to a running gate, whichever comes first."""

from schemas.evaluation import ReevaluateModel
from schemas.job import Artifact, JobCancelled, JobEvaluating
from schemas.model import ModelArchived, ModelRegistered, PromotionRefused
from schemas.sweep import TrialChosen
from services.evaluator import store
from services.evaluator.decide import lifecycle
from services.evaluator.decide.lifecycle import Decision
from services.evaluator.decide.nodes import subject_of
from shared.device_leases.holder import DeviceLeases
from shared.errors import ParentUnknown, Refused
from shared.messaging.unit import Task, Unit


class RunGate(Task, frozen=True):
    eval_id: str

    @property
    def key(self) -> str:
        return self.eval_id


async def job_evaluating(event: JobEvaluating, unit: Unit) -> None:
    """Evaluate what a job trained; what a trial of a sweep trained when its sweep chooses it."""
    if event.trial is None:
        await evaluate_artifact(event, unit)


async def evaluate_artifact(event: JobEvaluating | TrialChosen, unit: Unit) -> None:
    await store.lock_job(unit.conn, event.job_id)
    artifact = Artifact.model_validate(event.model_dump())
    await _save_artifact(artifact, unit)
    version = await store.find_version_of(unit.conn, event.job_id, event.bundle)
    eval_id = _evaluation_of(artifact)
    number = await store.next_number(unit.conn, event.job_id)
    await _open(unit, lifecycle.open_evaluation(eval_id, artifact, version, number=number))


async def job_cancelled(event: JobCancelled, unit: Unit) -> None:
    """Save the artifact and end its evaluation: nobody evaluates a cancelled job's model unless a person asks, and
    then the artifact says against what."""
    if event.artifact is None:
        return
    await store.lock_job(unit.conn, event.job_id)
    await _save_artifact(event.artifact, unit)
    eval_id = _evaluation_of(event.artifact)
    await unit.cancel_task(RunGate, eval_id)
    if await store.forget_work(unit.conn, eval_id):  # a node goes on without the task
        await DeviceLeases.give_back(unit, subject_of(eval_id))
    evaluation = await store.find_evaluation(unit.conn, eval_id)
    if evaluation is not None:
        await _save(unit, lifecycle.cancel(evaluation))


async def model_registered(event: ModelRegistered, unit: Unit) -> None:
    await store.lock_job(unit.conn, event.job_id)
    await store.save_version(unit.conn, event)
    waiting = await store.find_waiting(unit.conn, event.job_id)
    if waiting is not None and waiting.artifact.bundle == event.bundle:
        await _save(unit, lifecycle.begin(waiting, event))


async def model_archived(event: ModelArchived, unit: Unit) -> None:
    await store.archive_version(unit.conn, event.model_id)


async def promotion_refused(event: PromotionRefused, unit: Unit) -> None:
    """Abandon the evaluation of an artifact that was refused. The registry may have met it before we heard of it."""
    if event.code != "artifact":
        return
    if await store.find_artifact(unit.conn, event.job_id) is None:
        raise ParentUnknown(_artifact_of(event.job_id))
    waiting = await store.find_waiting(unit.conn, event.job_id)
    if waiting is not None:
        await _save(unit, lifecycle.abandon(waiting, reason=event.message))


async def reevaluate(command: ReevaluateModel, unit: Unit) -> None:
    """Evaluate a model again. Gate and holdout stay the job's; the suites are those registered when the gate runs."""
    assert unit.envelope is not None, "commands come as messages"
    version = await store.find_version(unit.conn, command.model_id, command.tenant)
    if version is None:
        raise _refused("unknown_model", command, f"is not a version of tenant {command.tenant}")
    await store.lock_job(unit.conn, version.job_id)
    artifact = await store.find_artifact(unit.conn, version.job_id)
    if artifact is None:
        raise _refused("not_evaluated", command, "is not evaluated yet: its job's JobEvaluating is missing")
    if await store.is_archived(unit.conn, command.model_id):
        raise _refused("archived", command, "is archived: nothing serves it, whatever an evaluation finds")
    if await store.is_running(unit.conn, command.model_id):
        raise _refused("already_running", command, "is being evaluated")
    eval_id = lifecycle.evaluation_id(command.model_id, unit.envelope.id)
    number = await store.next_number(unit.conn, version.job_id)
    await _open(unit, lifecycle.open_evaluation(eval_id, artifact, version, number=number))


async def _save_artifact(artifact: Artifact, unit: Unit) -> None:
    await store.save_artifact(unit.conn, artifact)
    await unit.release(_artifact_of(artifact.job_id))


def _evaluation_of(artifact: Artifact) -> str:
    """Return the id of the evaluation that the job waits for."""
    bundle = artifact.bundle.manifest_sha256
    return lifecycle.evaluation_id(artifact.job_id, str(artifact.attempt), bundle)


def _artifact_of(job_id: str) -> str:
    return f"artifact:{job_id}"


def _refused(code: str, command: ReevaluateModel, why: str) -> Refused:
    return Refused(code, f"model {command.model_id} {why}", param="model_id", subject_id=command.model_id)


async def _open(unit: Unit, decision: Decision) -> None:
    if await store.add_evaluation(unit.conn, decision.evaluation):
        await _publish_decision(unit, decision)


async def _save(unit: Unit, decision: Decision) -> None:
    await store.save_evaluation(unit.conn, decision.evaluation)
    await _publish_decision(unit, decision)


async def _publish_decision(unit: Unit, decision: Decision) -> None:
    await unit.emit(*decision.events)
    if decision.starts:
        evaluation = decision.evaluation
        task = RunGate(eval_id=evaluation.eval_id, tenant=evaluation.artifact.tenant)
        await unit.start_task(task)
