"""What each event sets in the read models: event -> table, key and fields."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any

from schemas import (
    access,
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
from schemas.base import Message
from schemas.envelope import Envelope
from services.gateway.model import JsonObject, SubmittedStage
from services.gateway.tables import (
    ALERT,
    BASE,
    CHECKPOINT,
    CORDON,
    DATASET,
    EVALUATION,
    EXPORT,
    INCARNATION,
    JOB,
    KAFKA_USER,
    NEW_VERSION,
    POOL,
    RAISED_ALERT,
    REPLICA,
    ROUTE,
    RUNNING_EVALUATION,
    RUNNING_EXPORT,
    SUITE,
    SWEEP,
    TRIAL,
    VERSION,
    Table,
)
from shared.messaging.unit import Unit

Source = Callable[[Any, Unit], object]
"""Function that makes the value of a column."""


@dataclass(frozen=True)
class Projection:
    """What an event sets in the row of a table."""

    table: Table
    sources: Mapping[str, Source]

    async def apply(self, event: Message, unit: Unit) -> None:
        await self.table.save(unit.conn, {name: get(event, unit) for name, get in self.sources.items()})


def into(table: Table, *same: str, **others: object) -> Projection:
    """Columns take the event's field of the same name, or the constant or source that is given for them."""
    sources = {name: field_of(name) for name in (*table.key, *table.once, *same)}
    return Projection(table, sources | {name: _source(value) for name, value in others.items()})


def _source(value: object) -> Source:
    return value if callable(value) else lambda event, unit: value


def field_of(path: str) -> Source:
    """A field of the event, or of a part of it: `bundle.step`."""
    get = attrgetter(path)
    return lambda event, unit: get(event)


def fields_of(*names: str) -> Source:
    return lambda event, unit: event.model_dump(mode="json", include=set(names))


def fields_except(*names: str) -> Source:
    return lambda event, unit: event.model_dump(mode="json", exclude=set(names))


def envelope_of(unit: Unit) -> Envelope:
    assert unit.envelope is not None, "events come with an envelope"
    return unit.envelope


def now(event: Message, unit: Unit) -> datetime:
    return unit.now


def sent_at(event: Message, unit: Unit) -> datetime:
    return envelope_of(unit).time


def _bundle(**others: object) -> Projection:
    bundle = {name: field_of(f"bundle.{name}") for name in ("attempt", "step", "manifest_sha256")}
    return into(CHECKPOINT, **({"created_at": now, "kind": "", "metrics": {}} | bundle | others))


def _queue_entry(event: job.QueuePositionChanged, unit: Unit) -> JsonObject:
    """Return the job's place in the queue. It comes on another topic than the job's own: it may be heard before the
    job is queued, and after it has nodes.
    """
    entry: JsonObject = event.model_dump(mode="json", exclude={"job_id", "tenant"})
    return entry | {"as_of": envelope_of(unit).time.isoformat()}


def _stage(event: job.JobSubmitted | job.JobScheduled | job.JobStageCompleted, unit: Unit) -> int | None:
    return event.stage.number if event.stage else None


def _evaluation(*same: str, **others: object) -> Projection:
    unknown = {"reason": "", "checks": (), "evidence": None}
    values = {name: value for name, value in unknown.items() if name not in same} | others
    return into(EVALUATION, *same, created_at=now, progress=None, **values)


def _export(*same: str, **others: object) -> Projection:
    unknown = {"files": (), "parity": None, "code": "", "message": "", "finished_at": now}
    values = {name: value for name, value in unknown.items() if name not in same} | others
    return into(EXPORT, "format", "quantization", *same, progress=None, **values)


def _route(*same: str, **others: object) -> Projection:
    unknown = {"model_id": "", "digest": "", "reason": "", "served_name": "", "replicas": ()}
    values = {name: value for name, value in unknown.items() if name not in same} | others
    return into(ROUTE, "generation", *same, updated_at=now, **values)


SUITE_COLUMNS = ("name", "digest", "rows", "file", "examples")
SUITE_FILE = {"file_id": field_of("file.file_id"), "sha256": field_of("file.sha256")}
VERSION_OF_SLOT = ("model_id", "digest")
DATASET_COLUMNS = ("dataset_id", "tenant", "dataset_version")

PROJECTIONS: dict[type[Message], Projection] = {
    dataset.DatasetAccepted: into(DATASET, state="validating", detail=fields_except(*DATASET_COLUMNS)),
    dataset.DatasetReady: into(
        DATASET, "dataset_version", state="ready", detail=fields_except(*DATASET_COLUMNS)
    ),
    dataset.DatasetRejected: into(DATASET, state="rejected", detail=fields_except(*DATASET_COLUMNS)),
    job.JobSubmitted: into(
        JOB,
        *("spec", "dataset_id", "retry_of"),
        state="validating",
        created_at=field_of("submitted_at"),
        stage=_stage,
        stages=lambda event, unit: SubmittedStage.all_of(event),
    ),
    job.JobQueued: into(
        JOB,
        *("waiting_for", "num_steps", "config_hash", "duplicate_of", "recipe_reasons"),
        state="queued",
        dataset_version=field_of("dataset.version"),
        stage_plans=field_of("stages"),
    ),
    job.QueuePositionChanged: into(JOB, queue_entry=_queue_entry),
    job.JobScheduled: into(
        JOB, "attempt", "spec", state="provisioning", waiting_for="", queue_entry=None, stage=_stage
    ),
    job.JobRunning: into(JOB, state="running"),
    job.JobStopping: into(JOB, state="stopping", waiting_for=""),
    job.JobPaused: into(
        JOB,
        state="paused",
        waiting_for=lambda event, unit: _why_paused(event),
        queue_entry=None,
    ),
    job.JobRequeued: into(
        JOB,
        state="queued",
        waiting_for=lambda event, unit: f"capacity, not before {event.not_before:%H:%M:%S}",
    ),
    job.JobStageCompleted: into(
        JOB,
        state="queued",
        stage=_stage,
        waiting_for=lambda event, unit: (
            f"capacity for stage {event.stage.number} of {event.stage.num_stages}"
        ),
        queue_entry=None,
    ),
    job.JobEvaluating: into(JOB, state="evaluating", waiting_for=""),
    job.JobSucceeded: into(
        JOB,
        *("fine_tuned_model", "model_id"),
        state="succeeded",
        waiting_for="",
        is_promoted=field_of("promoted"),
        is_deployed=field_of("deployed"),
        ending=field_of("message"),
        finished_at=now,
    ),
    job.JobFailed: into(
        JOB,
        state="failed",
        waiting_for="",
        error=fields_of("code", "message", "param", "failure_class"),
        finished_at=now,
    ),
    job.JobCancelled: into(
        JOB,
        state="cancelled",
        waiting_for="",
        finished_at=now,
        ending=lambda event, unit: _why_cancelled(event),
    ),
    cost.CostAccrued: into(
        JOB,
        cost=lambda event, unit: _charged(event),
        uncharged_cost=lambda event, unit: event.total - _charged(event),
    ),
    training.TrainingPrepared: into(
        JOB,
        preparation=lambda event, unit: (
            {"attempt": event.attempt} | event.preparation.model_dump(mode="json")
        ),
    ),
    training.TrainingResumed: into(JOB, "certificate"),
    training.TrainingCompleted: into(JOB, "last_step"),
    training.CheckpointWritten: _bundle(kind=field_of("kind"), metrics=field_of("metrics"), state="written"),
    checkpoint.CheckpointVerified: _bundle(state="verified"),
    checkpoint.CheckpointCorrupt: _bundle(state="corrupt"),
    checkpoint.CheckpointExpired: _bundle(state="expired"),
    alert.AlertRaised: into(
        ALERT,
        *("step", "value", "unit", "message", "is_muted"),
        raised_at=sent_at,
        limit_value=field_of("limit"),
    ),
    alert.AlertCleared: into(RAISED_ALERT, cleared_at=sent_at, cleared_by=field_of("message")),
    sweep.SweepSubmitted: into(SWEEP, "dataset_id", "spec", created_at=field_of("submitted_at")),
    sweep.TrialSubmitted: into(TRIAL, "parameters", "duplicate_of", state="running"),
    sweep.TrialEnded: into(TRIAL, "state", "valid_loss", "message"),
    sweep.SweepStopping: into(SWEEP, "message", state="stopping"),
    sweep.SweepEnded: into(SWEEP, "state", "best", "best_valid_loss", "message", finished_at=now),
    evaluation.BenchmarkRegistered: into(
        SUITE,
        *("digest", "rows"),
        is_benchmark=True,
        detail=fields_except(*SUITE_COLUMNS),
        registered_at=sent_at,
        examples_file_id=lambda event, unit: event.examples and event.examples.file_id,
        examples_sha256=lambda event, unit: event.examples and event.examples.sha256,
        **SUITE_FILE,
    ),
    evaluation.SafetySuiteRegistered: into(
        SUITE,
        *("digest", "rows"),
        is_benchmark=False,
        detail=fields_except(*SUITE_COLUMNS),
        registered_at=sent_at,
        **SUITE_FILE,
    ),
    evaluation.EvalStarted: _evaluation(outcome="running"),
    evaluation.EvalProgressed: into(
        RUNNING_EVALUATION,
        progress=fields_of("activity", "suite", "side", "items_done", "items_total", "seconds_left"),
    ),
    evaluation.EvalPassed: _evaluation("checks", "evidence", outcome="passed"),
    evaluation.EvalFailed: _evaluation("checks", "evidence", "reason", outcome="failed"),
    evaluation.EvalInconclusive: _evaluation("checks", "evidence", "reason", outcome="inconclusive"),
    model.BaseModelRegistered: into(
        BASE, "base_sha", detail=fields_except("name", "base_sha"), registered_at=now
    ),
    model.ModelRegistered: into(
        NEW_VERSION,
        detail=fields_of(
            *("config_hash", "template_sha256", "training_template_sha256", "bundle", "kind", "rank"),
            "started_from",
            *("best_valid_loss", "stages"),
        ),
        created_at=now,
    ),
    model.ModelPromoted: into(
        VERSION,
        *("stage", "eval_id", "has_holdout", "approved_by", "approval_reason", "accepted_without_holdout"),
    ),
    model.ModelDemoted: into(
        VERSION, "stage", approved_by=None, approval_reason="", accepted_without_holdout=False
    ),
    model.ModelArchived: into(VERSION, stage="archived"),
    model.ModelExportStarted: _export("estimated_bytes", created_at=now, finished_at=None, state="running"),
    model.ModelExportProgressed: into(
        RUNNING_EXPORT, progress=fields_of("activity", "done", "total", "seconds_left")
    ),
    model.ModelExported: _export("files", "size_bytes", "parity", state="ready"),
    model.ModelExportFailed: _export("code", "message", "parity", state="failed"),
    model.ModelExportDeleted: _export(state="deleted"),
    model.DeploymentApproved: _route(*VERSION_OF_SLOT, state="pending"),
    model.DeploymentWithdrawn: _route("reason", state="withdrawn"),
    deployment.DeploymentReady: _route(*VERSION_OF_SLOT, "served_name", "replicas", state="ready"),
    deployment.DeploymentIdle: _route(*VERSION_OF_SLOT, state="ready"),
    # What failed to load leaves the version before it in place; a stale one must not answer any more.
    deployment.DeploymentFailed: _route(
        *VERSION_OF_SLOT,
        "reason",
        state=lambda event, unit: "stale" if event.code == "stale" else "failed",
    ),
    deployment.DeploymentStopped: _route(*VERSION_OF_SLOT, state="stopped"),
    deployment.ReplicaReady: into(
        REPLICA,
        "served_base",
        replica_id=field_of("replica.replica_id"),
        incarnation=field_of("replica.incarnation"),
        url=field_of("replica.url"),
        is_ready=True,
    ),
    deployment.ReplicaLost: into(
        INCARNATION,
        replica_id=field_of("replica.replica_id"),
        incarnation=field_of("replica.incarnation"),
        is_ready=False,
    ),
    node.NodesProvisioned: into(
        JOB,
        waiting_for="",
        price_per_hour=lambda event, unit: sum((each.price_per_hour for each in event.nodes), Decimal(0)),
        held_since=lambda event, unit: min((each.allocated_at for each in event.nodes), default=None),
    ),
    node.NodesReleased: into(JOB, price_per_hour=None, held_since=None),
    node.PoolCapacityChanged: into(POOL, name=field_of("pool"), detail=fields_except()),
    node.MachineCordoned: into(CORDON, "source", "reason", is_lifted=False, changed_at=sent_at),
    node.MachineUncordoned: into(CORDON, source="", reason="", is_lifted=True, changed_at=sent_at),
    access.KafkaUserReady: into(
        KAFKA_USER, "reads", "writes", "group_prefix", name=field_of("user"), changed_at=now
    ),
}
"""What else follows from an event is in `handlers`."""


def _charged(event: cost.CostAccrued) -> Decimal:
    return event.total if event.charged_total is None else event.charged_total


def _why_paused(event: job.JobPaused) -> str:
    return f"somebody to resume it{WHY_PAUSED[event.reason]}"


def _why_cancelled(event: job.JobCancelled) -> str:
    """Return what ended it, where its tenant may not know, and what is left of it."""
    why = WHY_CANCELLED.get(event.reason)
    if why is None:
        return ""
    kept = f"its checkpoint of step {event.artifact.bundle.step}" if event.artifact else "no checkpoint"
    return f"{why}; {kept} is kept"


WHY_PAUSED: Mapping[job.PauseReason, str] = {
    job.PauseReason.USER: "",
    job.PauseReason.BUDGET: ": the budget paused it",
    job.PauseReason.ALERT: ": an alert paused it",
    job.PauseReason.PRUNE: ": its sweep paused it",
}
WHY_CANCELLED = {"budget": "its budget is spent", "alert": "it was to end at an alert"}
