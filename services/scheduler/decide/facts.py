"""What others say about a job. Each fact is stored, whatever the state; then the rows say what follows."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from schemas.alert import AlertRaised
from schemas.base import BestBundle, BundleRef, FailureClass, Message
from schemas.checkpoint import CheckpointCorrupt, CheckpointVerified
from schemas.cost import BudgetReached
from schemas.deployment import DeploymentFailed, DeploymentReady
from schemas.evaluation import EvalFailed, EvalInconclusive, EvalPassed
from schemas.lifecycle import TERMINAL, JobState
from schemas.model import (
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
    CheckpointWritten,
    TrainingCompleted,
    TrainingFailed,
    TrainingStarted,
    TrainingStopped,
)
from services.scheduler.decide.alert import on_alert_raised
from services.scheduler.decide.attempt import (
    infra_stop,
    last_second,
    overrun_stop,
    restarted_clock,
    start_timers,
)
from services.scheduler.decide.budget import on_budget_reached
from services.scheduler.decide.decision import (
    Decision,
    DeploymentOverdue,
    JobTimer,
    RunOverdue,
    StartOverdue,
    StopOverdue,
    View,
)
from services.scheduler.decide.stop import ask_to_stop, last_facts_timer
from services.scheduler.decide.transitions import follow
from services.scheduler.model import (
    ATTEMPT_OPEN,
    RESUME_POINT_RISES,
    Approval,
    Base,
    Dataset,
    Deployment,
    Failure,
    Job,
    ModelVersion,
    Preemption,
    Rejection,
    TrainingResult,
    Unprovisioned,
)


class OfAttempt(Protocol):
    @property
    def attempt(self) -> int: ...


def on_dataset(job: Job, dataset: Dataset, view: View) -> Decision:
    """DatasetReady, DatasetRejected, DatasetDeleted or a refused SubmitDataset."""
    if job.state in TERMINAL:
        return _ignored(job)
    return follow(Decision(with_dataset(job, dataset)), view)


def with_dataset(job: Job, dataset: Dataset) -> Job:
    """Put the dataset into the job: it may be that of several stages."""
    known = zip(job.later_dataset_ids, job.later_datasets, strict=True)
    later = tuple(dataset if dataset_id == dataset.dataset_id else each for dataset_id, each in known)
    first = dataset if job.dataset_id == dataset.dataset_id else job.dataset
    return replace(job, dataset=first, later_datasets=later)


def on_nodes_queued(job: Job, fact: NodesQueued, view: View) -> Decision:
    return _store(job, fact, view, waits_at_backend=True)


def on_nodes_provisioned(job: Job, fact: NodesProvisioned, view: View) -> Decision:
    """After a wait in the backend's queue the times to start and to run count from now on."""
    decision = _store(job, fact, view, waits_at_backend=False)
    if decision.ignored or fact.start_deadline is None:
        return decision
    begun = restarted_clock(decision.job, fact.start_deadline, view)
    return replace(decision, job=begun, timers=decision.timers + start_timers(begun, view))


def on_provisioning_failed(job: Job, fact: ProvisioningFailed, view: View) -> Decision:
    return _store(job, fact, view, unprovisioned=Unprovisioned(fact.code, fact.message))


def on_training_started(job: Job, fact: TrainingStarted, view: View) -> Decision:
    return _store(job, fact, view, started=True)


def on_checkpoint_written(job: Job, fact: CheckpointWritten, view: View) -> Decision:
    return _store(job, fact, view, bundle=fact.bundle)


def on_training_completed(job: Job, fact: TrainingCompleted, view: View) -> Decision:
    ending = TrainingResult(completed=True, last_step=fact.last_step, bundle=fact.bundle)
    return _store(job, fact, view, bundle=fact.bundle, ending=ending)


def on_training_stopped(job: Job, fact: TrainingStopped, view: View) -> Decision:
    ending = TrainingResult(completed=False, last_step=fact.last_step, bundle=fact.bundle)
    return _store(job, fact, view, bundle=fact.bundle, ending=ending)


def on_training_failed(job: Job, fact: TrainingFailed, view: View) -> Decision:
    deadline = view.now + view.policy.abrupt_stop
    return _store(job, fact, view, failure=Failure(fact.failure_class, fact.message, deadline))


def on_node_lost(job: Job, fact: NodeLost, view: View) -> Decision:
    """The other nodes of the gang get the whole grace: they may still have something to save."""
    deadline = view.now + timedelta(seconds=job.grace_seconds)
    message = f"node {fact.node_id} was lost: {fact.message}"
    return _store(
        job, fact, view, failure=Failure(fact.failure_class or FailureClass.INFRA, message, deadline)
    )


def on_node_preempted(job: Job, fact: NodePreempted, view: View) -> Decision:
    message = f"node {fact.node_id} goes away at {fact.deadline:%H:%M:%S} UTC, says {fact.source}"
    notices = [Preemption(fact.deadline, message)]
    if job.run is not None and job.run.facts.preemption is not None:
        notices.append(job.run.facts.preemption)
    return _store(job, fact, view, preemption=min(notices, key=lambda notice: notice.deadline))


def on_nodes_released(job: Job, fact: NodesReleased, view: View) -> Decision:
    first = job.run.facts.released_at if job.run else None
    decision = _store(job, fact, view, released_at=first or view.now)
    if job.waits_for_release and not decision.ignored:
        return replace(decision, job=replace(decision.job, not_before=None))
    return replace(decision, timers=decision.timers + last_facts_timer(decision.job, view))


def on_verdict(job: Job, fact: CheckpointVerified | CheckpointCorrupt, view: View) -> Decision:
    """Take a verdict on a bundle of any attempt: the resume point is the newest verified bundle, whoever wrote it."""
    if job.state not in RESUME_POINT_RISES:
        return _ignored(job)
    if job.is_of_stage_before(fact.bundle):
        return Decision(
            job, ignored=f"bundle of attempt {fact.bundle.attempt}, which trained an earlier stage"
        )
    if isinstance(fact, CheckpointVerified):
        judged = replace(job, verified=job.verified | {fact.bundle})
        if judged.resume == fact.bundle:
            judged = replace(judged, best=_best_of(job, fact))
    else:
        judged = replace(job, corrupt=job.corrupt | {fact.bundle})
    return follow(Decision(judged.without_superseded_bundles()), view)


def _best_of(job: Job, fact: CheckpointVerified) -> BestBundle | None:
    """What a bundle names is a runner's word: of other jobs' only the one that this job began with counts."""
    best = fact.best
    if best is None or best.bundle.job_id is None:
        return best
    return best if job.best is not None and best.bundle == job.best.bundle else None


def on_eval_passed(job: Job, fact: EvalPassed, view: View) -> Decision:
    return _store_evaluation(job, view, passed=True)


def on_eval_not_passed(job: Job, fact: EvalFailed | EvalInconclusive, view: View) -> Decision:
    word = "failed" if isinstance(fact, EvalFailed) else "was inconclusive"
    return _store_evaluation(job, view, denial=Rejection(f"the gate {word}: {fact.reason}"))


def on_model_registered(job: Job, fact: ModelRegistered, view: View) -> Decision:
    model = ModelVersion(fact.model_id, fact.full_name, fact.digest)
    return _store_evaluation(job, view, model=model)


def on_model_promoted(job: Job, fact: ModelPromoted, view: View) -> Decision:
    if fact.stage not in (Stage.STAGING, Stage.PRODUCTION):
        return Decision(job, ignored=f"stage {fact.stage}")
    model = ModelVersion(fact.model_id, fact.full_name, fact.digest)
    return _store_evaluation(job, view, promoted=True, model=model)


def on_promotion_refused(job: Job, fact: PromotionRefused, view: View) -> Decision:
    denial = Rejection(f"promotion refused: {fact.message}", without_model=fact.model_id is None)
    return _store_evaluation(job, view, denial=denial)


def on_base_replaced(job: Job, base: Base, view: View) -> Decision:
    """`job` is on files that the base model's name no longer points to, but to `base`.

    What is under way continues: the old files may be registered again before it ends.
    """
    message = f"base model {job.spec.base_model} has other files now (sha {base.sha[:12]})"
    return _store_denial(job, view, job.evaluation.denial or Rejection(message, stale_base=True))


def on_base_restored(job: Job, view: View) -> Decision:
    """The base model's name points to the job's files (again)."""
    denial = job.evaluation.denial
    if denial is None or not denial.stale_base:
        return Decision(job)
    return _store_denial(job, view, None)


def on_deployment_approved(
    job: Job, fact: DeploymentApproved, deployment: Deployment | None, view: View
) -> Decision:
    """`deployment`: what serving has said already about that slot."""
    approval = Approval(fact.slot, fact.generation)
    return _store_evaluation(job, view, approval=approval, deployment=deployment)


def deployment_of(fact: DeploymentReady | DeploymentFailed) -> Deployment:
    if isinstance(fact, DeploymentReady):
        return Deployment(fact.slot, fact.tenant, fact.generation, is_ready=True)
    message = f"{fact.code}: {fact.reason}"
    return Deployment(fact.slot, fact.tenant, fact.generation, is_ready=False, message=message)


def on_deployment(job: Job, deployment: Deployment, view: View) -> Decision:
    """DeploymentReady or DeploymentFailed of the slot that the job waits for."""
    return _store_evaluation(job, view, deployment=deployment)


def on_start_overdue(job: Job, timer: StartOverdue, view: View) -> Decision:
    """provisioning -> stopping(failure infra)."""
    if job.state is not JobState.PROVISIONING or timer.attempt != job.attempt:
        return Decision(job)
    if job.facts.waits_at_backend or view.now < job.present.start_deadline:
        return Decision(job)  # another timer is set once its nodes exist, or was
    message = f"training did not start by {job.present.start_deadline:%H:%M:%S} UTC"
    return follow(ask_to_stop(job, infra_stop(message, view), view), view)


def on_run_overdue(job: Job, timer: RunOverdue, view: View) -> Decision:
    """provisioning, running -> stopping(failure user)."""
    if job.state not in (JobState.PROVISIONING, JobState.RUNNING) or timer.attempt != job.attempt:
        return Decision(job)
    if job.facts.waits_at_backend or view.now < last_second(job):
        return Decision(job)  # another timer is set once its nodes exist, or was
    return follow(ask_to_stop(job, overrun_stop(job, view), view), view)


def on_overdue(job: Job, timer: StopOverdue | DeploymentOverdue, view: View) -> Decision:
    """Enough was waited for: the rows look at the time themselves."""
    return follow(Decision(job), view)


def _store(
    job: Job, fact: OfAttempt, view: View, *, bundle: BundleRef | None = None, **facts: Any
) -> Decision:
    """What is said about an attempt that is over changes nothing."""
    if job.state in TERMINAL:
        return _ignored(job)
    if job.run is None or fact.attempt != job.attempt:
        return Decision(job, ignored=f"attempt {fact.attempt}, present: {job.attempt}")
    named = job.facts.named | ({bundle} if bundle else frozenset())
    stored = job.with_run(facts=replace(job.facts, named=named, **facts))
    return follow(Decision(stored.without_superseded_bundles()), view)


def _store_evaluation(job: Job, view: View, **changes: Any) -> Decision:
    if job.state not in ATTEMPT_OPEN | {JobState.EVALUATING}:
        return _ignored(job)
    stored = replace(job, evaluation=replace(job.evaluation, **changes))
    return follow(Decision(stored), view)


def _store_denial(job: Job, view: View, denial: Rejection | None) -> Decision:
    """Store or clear the denial of the job's base model, which every open job has."""
    if job.state in TERMINAL:
        return _ignored(job)
    return follow(Decision(replace(job, evaluation=replace(job.evaluation, denial=denial))), view)


def _ignored(job: Job) -> Decision:
    return Decision(job, ignored=f"the job is {job.state}")


ABOUT_JOB: Mapping[type[Message], Callable[[Job, Any, View], Decision]] = {
    NodesQueued: on_nodes_queued,
    NodesProvisioned: on_nodes_provisioned,
    NodePreempted: on_node_preempted,
    NodeLost: on_node_lost,
    TrainingStarted: on_training_started,
    CheckpointWritten: on_checkpoint_written,
    TrainingFailed: on_training_failed,
    TrainingStopped: on_training_stopped,
    TrainingCompleted: on_training_completed,
    CheckpointVerified: on_verdict,
    CheckpointCorrupt: on_verdict,
    EvalPassed: on_eval_passed,
    EvalFailed: on_eval_not_passed,
    EvalInconclusive: on_eval_not_passed,
    ModelRegistered: on_model_registered,
    ModelPromoted: on_model_promoted,
    PromotionRefused: on_promotion_refused,
    AlertRaised: on_alert_raised,
    BudgetReached: on_budget_reached,
}
"""Facts that name their job and concern it alone."""

ABOUT_TIME: Mapping[type[JobTimer], Callable[[Job, Any, View], Decision]] = {
    StartOverdue: on_start_overdue,
    RunOverdue: on_run_overdue,
    StopOverdue: on_overdue,
    DeploymentOverdue: on_overdue,
}
