"""One sentence per event of a job, for people: the timeline that clients read and stream."""

from collections.abc import Callable
from typing import Any

from schemas import (
    alert,
    checkpoint,
    cost,
    dataset,
    deployment,
    evaluation,
    job,
    model,
    node,
    sweep,
    training,
)
from schemas.base import CommandRefused, Message
from schemas.numbers import money, plural

BundleFact = (
    training.CheckpointWritten
    | checkpoint.CheckpointVerified
    | checkpoint.CheckpointCorrupt
    | checkpoint.CheckpointExpired
)
Sentence = tuple[str, str]
"""(level, message); level is `info`, `warn` or `error`."""


def sentence(event: Message) -> Sentence:
    """What happened. Types without a row here are described by their name."""
    describe = SENTENCES.get(type(event))
    return describe(event) if describe else ("info", type(event).__name__)


def _variant(event: model.ExportFact) -> str:
    return f"{event.format} {event.quantization}" if event.quantization else event.format


def _bundle(event: BundleFact) -> str:
    return f"step {event.bundle.step} of attempt {event.bundle.attempt}"


def _certificate(event: training.TrainingResumed) -> Sentence:
    certificate = event.certificate
    if not certificate.exact:
        what = " with equal state in another environment" if certificate.state_exact else ", not exact"
        return "warn", f"resumed at step {certificate.step}{what}: {certificate.reason}"
    limit = "; this device rounds differently each time" if certificate.is_repeatable is False else ""
    return "info", f"resumed exactly at step {certificate.step}{limit}"


def _prepared(event: training.TrainingPrepared) -> Sentence:
    preparation = event.preparation
    level = "warn" if preparation.packing is training.PackingVerdict.REFUSED else "info"
    return level, f"ready to train: {preparation.summary}"


def _succeeded(event: job.JobSucceeded) -> Sentence:
    return ("info" if event.promoted else "warn"), event.message


def _failed_gate(event: evaluation.EvalFailed | evaluation.EvalInconclusive) -> Sentence:
    return "warn", f"gate not passed: {event.reason}"


def _eval_progressed(event: evaluation.EvalProgressed) -> Sentence:
    what = " ".join(filter(None, (event.activity.replace("_", " "), event.suite)))
    whose = " of the base model" if event.side == "base" else ""
    total = (
        "" if event.items_total is None else f": {event.items_done:,} of {plural(event.items_total, 'item')}"
    )
    return "info", f"the gate: {what}{whose}{total}"


def _check_completed(event: evaluation.EvalCheckCompleted) -> Sentence:
    result = event.result
    outcome = result.outcome.replace("not_requested", "not asked")
    reason = f": {result.reason}" if result.reason else ""
    level = "info" if result.outcome in ("passed", "not_requested") else "warn"
    return level, f"gate check {result.check.replace('_', ' ')} {outcome}{reason}"


def _cost(event: cost.CostAccrued) -> Sentence:
    why = event.failure_class.value if event.failure_class else ""
    free = f", which is not charged ({why})" if event.charged == 0 and event.cost > 0 else ""
    total = event.total if event.charged_total is None else event.charged_total
    return "info", f"attempt {event.attempt} cost {money(event.cost)}{free}; {money(total)} charged so far"


def _written(event: training.CheckpointWritten) -> Sentence:
    is_best = event.best is not None and event.best.bundle == event.bundle
    best = f", the best so far: validation loss {event.best.valid_loss:.4f}" if event.best and is_best else ""
    return "info", f"checkpoint written: {_bundle(event)} ({event.kind.value}){best}"


def _evaluating(event: job.JobEvaluating) -> Sentence:
    loss = event.best_valid_loss
    best = (
        ""
        if loss is None
        else f" on the best checkpoint, of step {event.bundle.step}: validation loss {loss:.4f}"
    )
    return "info", f"training complete; the gate is running{best}"


def _dataset_ready(event: dataset.DatasetReady) -> Sentence:
    return ("warn" if event.counts.kept_leaks else "info"), f"dataset ready: {event.counts.summary}"


SENTENCES: dict[type[Message], Callable[[Any], Sentence]] = {
    job.JobSubmitted: lambda e: (
        "info",
        (f"continues job {e.resume.job_id} from step {e.resume.step}; " if e.resume else "")
        + "job accepted; validating its files",
    ),
    dataset.DatasetReady: _dataset_ready,
    dataset.DatasetRejected: lambda e: ("error", f"dataset refused ({e.code}): {e.message}"),
    job.JobQueued: lambda e: ("info", f"queued: {e.waiting_for}"),
    job.JobScheduled: lambda e: (
        "info",
        f"attempt {e.attempt} scheduled on {plural(e.nodes, 'node')} of pool {e.pool}"
        + (f" for stage {e.stage.number} of {e.stage.num_stages}" if e.stage else "")
        + (f", resuming from step {e.resume.step}" if e.resume else ""),
    ),
    job.JobRunning: lambda e: ("info", f"attempt {e.attempt} is training"),
    job.JobStopping: lambda e: (
        "info",
        f"stopping attempt {e.attempt}: {e.reason.value} {e.message}".rstrip(),
    ),
    job.JobPaused: lambda e: ("info", f"paused ({e.reason.value})"),
    job.JobRequeued: lambda e: (
        "warn",
        f"requeued after attempt {e.attempt}: {e.failure_class.value}. {e.message}",
    ),
    job.JobStageCompleted: lambda e: (
        "info",
        f"stage {e.stage.number - 1} of {e.stage.num_stages} is trained; stage {e.stage.number} is next",
    ),
    job.JobEvaluating: _evaluating,
    job.JobSucceeded: _succeeded,
    job.JobFailed: lambda e: ("error", f"{e.failure_class.value}: {e.message}"),
    job.JobCancelled: lambda e: ("info", f"cancelled ({e.reason}); last step {e.last_step}"),
    node.NodesQueued: lambda e: (
        "info",
        f"in the queue of pool {e.pool}'s cluster" + (f": {e.waiting_for}" if e.waiting_for else ""),
    ),
    node.NodesProvisioned: lambda e: ("info", f"starting: {plural(len(e.nodes), 'node')} of pool {e.pool}"),
    node.ProvisioningFailed: lambda e: ("warn", f"no nodes: {e.message}"),
    node.NodePreempted: lambda e: ("warn", f"node {e.node_id} is taken back at {e.deadline:%H:%M:%S}"),
    node.NodeLost: lambda e: ("warn", f"node {e.node_id} is lost: {e.message}"),
    node.NodesReleased: lambda e: ("info", f"{plural(len(e.nodes), 'node')} released"),
    training.TrainingStarted: lambda e: (
        "info",
        f"{plural(len(e.members), 'runner')} ready; training starts",
    ),
    training.TrainingPrepared: _prepared,
    training.TrainingResumed: _certificate,
    training.CheckpointWritten: _written,
    training.TrainingStopped: lambda e: ("info", f"training stopped at step {e.last_step} ({e.reason})"),
    training.TrainingCompleted: lambda e: (
        "info",
        f"training {e.message}" if e.message else f"training complete at step {e.last_step}",
    ),
    training.TrainingFailed: lambda e: (
        "error",
        f"{e.failure_class.value} at step {e.last_step}: {e.message}",
    ),
    checkpoint.CheckpointVerified: lambda e: ("info", f"checkpoint verified: {_bundle(e)}"),
    checkpoint.CheckpointCorrupt: lambda e: ("error", f"checkpoint corrupt: {_bundle(e)}: {e.message}"),
    checkpoint.CheckpointExpired: lambda e: ("info", f"checkpoint deleted by retention: {_bundle(e)}"),
    checkpoint.CheckpointOverdue: lambda e: ("warn", f"no checkpoint since step {e.last_step}"),
    alert.AlertRaised: lambda e: ("warn", f"alert {e.rule.value}: {e.message}"),
    alert.AlertsMuted: lambda e: (
        "info",
        f"alert {e.rule.value} muted by {e.muted_by}"
        + (f" until {e.until:%Y-%m-%d %H:%M:%S} UTC" if e.until else " for good"),
    ),
    alert.AlertsUnmuted: lambda e: ("info", f"alert {e.rule.value} unmuted by {e.unmuted_by}"),
    alert.AlertCleared: lambda e: ("info", f"alert {e.rule.value} cleared: {e.message}"),
    sweep.TrialEnded: lambda e: (
        "info",
        f"trial {e.number} of {e.sweep_id}: {e.state.value}. {e.message}".rstrip(),
    ),
    sweep.SweepEnded: lambda e: (
        "info" if e.state is sweep.SweepState.SUCCEEDED else "warn",
        f"sweep {e.state.value} after {plural(e.num_trials, 'trial')}: {e.message}",
    ),
    sweep.TrialChosen: lambda e: ("info", "the best trial of its sweep: goes to the gate"),
    evaluation.EvalStarted: lambda e: ("info", "evaluation started"),
    evaluation.EvalProgressed: _eval_progressed,
    evaluation.EvalCheckCompleted: _check_completed,
    evaluation.EvalPassed: lambda e: ("info", "gate passed"),
    evaluation.EvalFailed: _failed_gate,
    evaluation.EvalInconclusive: _failed_gate,
    model.ModelRegistered: lambda e: ("info", f"model version {e.full_name} registered"),
    model.ModelPromoted: lambda e: ("info", f"{e.full_name} promoted to {e.stage.value}"),
    model.ModelDemoted: lambda e: ("warn", f"{e.full_name} is back in {e.stage.value}: {e.reason}"),
    model.ModelExportStarted: lambda e: ("info", f"export to {_variant(e)} has begun"),
    model.ModelExportProgressed: lambda e: ("info", f"export to {_variant(e)}: {e.activity}"),
    model.ModelExported: lambda e: (
        "info",
        f"export to {_variant(e)} is ready: {plural(len(e.files), 'file')}",
    ),
    model.ModelExportFailed: lambda e: ("warn", f"export to {_variant(e)} failed: {e.message}"),
    model.ModelExportDeleted: lambda e: ("info", f"export to {_variant(e)} deleted"),
    model.PromotionRefused: lambda e: ("warn", f"promotion refused: {e.message}"),
    model.DeploymentApproved: lambda e: (
        "info",
        f"deployment to {e.slot} approved (generation {e.generation})",
    ),
    deployment.DeploymentReady: lambda e: (
        "info",
        f"{e.slot} is served by {plural(len(e.replicas), 'replica')}",
    ),
    model.DeploymentWithdrawn: lambda e: ("info", f"{e.slot} is withdrawn: {e.reason}"),
    deployment.DeploymentRolledBack: lambda e: (
        "info",
        f"{e.slot} is served by an earlier model again (generation {e.generation})",
    ),
    deployment.DeploymentFailed: lambda e: ("error", f"{e.slot} could not be deployed: {e.reason}"),
    cost.CostAccrued: _cost,
    cost.BudgetReached: lambda e: ("warn", f"budget reached in attempt {e.attempt}: {e.message}"),
    CommandRefused: lambda e: ("warn", f"{e.command} refused: {e.message}"),
}
