"""What other services say about the job `ftjob-1`, with only what matters left to name."""

from datetime import datetime, timedelta
from typing import Any

from schemas.alert import AlertRaised, AlertRule
from schemas.base import BestBundle, BundleRef, CapacityType, FailureClass
from schemas.checkpoint import CheckpointCorrupt, CheckpointVerified
from schemas.cost import BudgetReached
from schemas.evaluation import EvalFailed, EvalInconclusive, EvalPassed
from schemas.job import CancelJob, PauseJob, PauseReason, ResumeJob, RetryJob
from schemas.model import (
    AdaptersStale,
    BaseModelRegistered,
    DeploymentApproved,
    ModelPromoted,
    ModelRegistered,
    PromotionRefused,
    Stage,
)
from schemas.node import (
    NodeLost,
    NodePreempted,
    NodesProvisioned,
    NodesQueued,
    NodesReleased,
    ProvisioningFailed,
)
from schemas.training import (
    BundleKind,
    CheckpointWritten,
    TrainingCompleted,
    TrainingFailed,
    TrainingStarted,
    TrainingStopped,
)
from services.scheduler.model import Deployment
from tests.builders import NOON, TENANT, a_bundle, a_model_version, a_sha

JOB = {"job_id": "ftjob-1", "tenant": TENANT}
MODEL = a_model_version()
FINAL = a_bundle(step=600)


def cancel(reason: Any = "user") -> CancelJob:
    return CancelJob(**JOB, reason=reason)


def pause(reason: PauseReason = PauseReason.USER) -> PauseJob:
    return PauseJob(**JOB, reason=reason)


def alert(rule: AlertRule = AlertRule.DIVERGENCE, *, attempt: int = 1) -> AlertRaised:
    return AlertRaised(**JOB, attempt=attempt, rule=rule, episode=1, step=40, message="loss 9, at its best 2")


def budget_reached(*, attempt: int = 1) -> BudgetReached:
    message = "4.65 of 5 US dollars are spent"
    return BudgetReached(**JOB, attempt=attempt, budget="job", limit="5.00", spent="4.65", message=message)


def resume() -> ResumeJob:
    return ResumeJob(**JOB)


def retry(new_job_id: str = "ftjob-2") -> RetryJob:
    return RetryJob(**JOB, new_job_id=new_job_id)


def nodes_queued(*, attempt: int = 1) -> NodesQueued:
    return NodesQueued(**JOB, attempt=attempt, pool="cpu-spot", waiting_for="Priority")


def nodes_provisioned(*, attempt: int = 1, start_deadline: datetime | None = None) -> NodesProvisioned:
    return NodesProvisioned(
        **JOB,
        attempt=attempt,
        pool="cpu-spot",
        capacity_type=CapacityType.SPOT,
        nodes=(),
        start_deadline=start_deadline,
    )


def provisioning_failed(code: str = "no_capacity", *, attempt: int = 1) -> ProvisioningFailed:
    return ProvisioningFailed(**JOB, attempt=attempt, pool="cpu-spot", code=code, message="it says why")


def preempted(*, attempt: int = 1, deadline: datetime = NOON + timedelta(seconds=30)) -> NodePreempted:
    return NodePreempted(**JOB, attempt=attempt, node_id="n-0", deadline=deadline, source="operator")


def lost(*, attempt: int = 1) -> NodeLost:
    return NodeLost(**JOB, attempt=attempt, node_id="n-0", message="pid gone")


def released(*, attempt: int = 1) -> NodesReleased:
    return NodesReleased(**JOB, attempt=attempt, nodes=())


def started(*, attempt: int = 1) -> TrainingStarted:
    return TrainingStarted(**JOB, attempt=attempt, members=())


def written(bundle: BundleRef = FINAL, *, attempt: int = 1) -> CheckpointWritten:
    return CheckpointWritten(**JOB, attempt=attempt, bundle=bundle, kind=BundleKind.PERIODIC, metrics={})


def stopped(bundle: BundleRef | None = None, *, attempt: int = 1, last_step: int = 10) -> TrainingStopped:
    return TrainingStopped(**JOB, attempt=attempt, reason="preempt", last_step=last_step, bundle=bundle)


def completed(bundle: BundleRef = FINAL, *, attempt: int = 1) -> TrainingCompleted:
    return TrainingCompleted(**JOB, attempt=attempt, bundle=bundle, last_step=bundle.step)


def failed(failure_class: FailureClass = FailureClass.INFRA, *, attempt: int = 1) -> TrainingFailed:
    return TrainingFailed(**JOB, attempt=attempt, failure_class=failure_class, message="it says why")


def verified(bundle: BundleRef = FINAL, *, best: BestBundle | None = None) -> CheckpointVerified:
    return CheckpointVerified(**JOB, bundle=bundle, size_bytes=1, best=best)


def corrupt(bundle: BundleRef = FINAL) -> CheckpointCorrupt:
    return CheckpointCorrupt(**JOB, bundle=bundle, message="one byte differs")


EVAL = {
    **JOB,
    "eval_id": "ev-1",
    "model_id": MODEL.model_id,
    "digest": MODEL.digest,
    "base_sha": a_sha("tiny"),
    "checks": (),
}


def eval_passed() -> EvalPassed:
    return EvalPassed(**EVAL)


def eval_failed() -> EvalFailed:
    return EvalFailed(**EVAL, reason="safety 40 %")


def eval_inconclusive() -> EvalInconclusive:
    return EvalInconclusive(**EVAL, reason="12 of 100 items")


def registered() -> ModelRegistered:
    return ModelRegistered(
        **JOB,
        model_id=MODEL.model_id,
        digest=MODEL.digest,
        full_name=MODEL.full_name,
        kind="adapter",
        rank=32,
        base_model="tiny",
        base_sha=a_sha("tiny"),
        dataset_version=a_sha("dataset"),
        config_hash=a_sha("config"),
        template_sha256=a_sha("template"),
        bundle=FINAL,
    )


def promoted(stage: Stage = Stage.STAGING) -> ModelPromoted:
    return ModelPromoted(
        **JOB,
        model_id=MODEL.model_id,
        digest=MODEL.digest,
        full_name=MODEL.full_name,
        stage=stage,
        eval_id="ev-1",
    )


def promotion_refused(code: str = "stale") -> PromotionRefused:
    model_id = None if code == "artifact" else MODEL.model_id
    return PromotionRefused(**JOB, model_id=model_id, code=code, message="it says why")


def stale() -> AdaptersStale:
    return AdaptersStale(base_model="tiny", stale_sha=a_sha("tiny"), new_sha=a_sha("newer"))


def base_registered() -> BaseModelRegistered:
    return BaseModelRegistered(
        name="tiny",
        base_sha=a_sha("tiny"),
        manifest_sha256=a_sha("manifest"),
        source="directory",
        template_sha256=a_sha("template"),
        context_tokens=1024,
        num_parameters=1,
    )


def approved(*, generation: int = 1) -> DeploymentApproved:
    return DeploymentApproved(
        slot=MODEL.full_name,
        tenant=TENANT,
        generation=generation,
        model_id=MODEL.model_id,
        job_id="ftjob-1",
        kind="adapter",
        digest=MODEL.digest,
        base_model="tiny",
        base_sha=a_sha("tiny"),
        eval_id="ev-1",
        rank=32,
    )


def deployment(*, generation: int = 1, is_ready: bool = True) -> Deployment:
    return Deployment(MODEL.full_name, TENANT, generation, is_ready, "" if is_ready else "the probe failed")
