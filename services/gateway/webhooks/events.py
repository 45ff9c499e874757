"""Which facts become which events, and what of a fact is sent. Pure.

An event says what happened to what; the receiver asks the API for the rest. OpenAI's types have OpenAI's fields.
"""

import json
from datetime import datetime

from schemas import alert, checkpoint, cost, dataset, deployment, evaluation, job, model, sweep
from schemas.base import CommandRefused, Message
from services.gateway.timeline import sentence
from services.gateway.webhooks.model import Event

PING = "ping"
"""Type of the event that a test sends; nobody needs to ask for it."""
OPENAI_PREFIX = "fine_tuning."
MAX_MESSAGE_CHARACTERS = 1_000
IDS = (
    *("job_id", "sweep_id", "dataset_id", "model_id", "eval_id", "export_id"),
    *("full_name", "fine_tuned_model", "slot", "code", "rule"),
)
"""Fields of a fact that its event has, too, beside `id` and `message`."""

EVENTS: dict[type[Message], tuple[str, str]] = {
    job.JobSubmitted: ("retune.job.submitted", "job_id"),
    job.JobQueued: ("retune.job.queued", "job_id"),
    job.JobScheduled: ("retune.job.scheduled", "job_id"),
    job.JobRunning: ("retune.job.running", "job_id"),
    job.JobPaused: ("retune.job.paused", "job_id"),
    job.JobRequeued: ("retune.job.requeued", "job_id"),
    job.JobStageCompleted: ("retune.job.stage_completed", "job_id"),
    job.JobEvaluating: ("retune.job.evaluating", "job_id"),
    job.JobSucceeded: ("fine_tuning.job.succeeded", "job_id"),
    job.JobFailed: ("fine_tuning.job.failed", "job_id"),
    job.JobCancelled: ("fine_tuning.job.cancelled", "job_id"),
    dataset.DatasetReady: ("retune.dataset.ready", "dataset_id"),
    dataset.DatasetRejected: ("retune.dataset.rejected", "dataset_id"),
    checkpoint.CheckpointVerified: ("retune.checkpoint.verified", "job_id"),
    evaluation.EvalPassed: ("retune.gate.passed", "eval_id"),
    evaluation.EvalFailed: ("retune.gate.failed", "eval_id"),
    evaluation.EvalInconclusive: ("retune.gate.inconclusive", "eval_id"),
    model.ModelRegistered: ("retune.model.registered", "model_id"),
    model.ModelPromoted: ("retune.model.promoted", "model_id"),
    model.ModelDemoted: ("retune.model.demoted", "model_id"),
    model.ModelExported: ("retune.model.exported", "model_id"),
    model.ModelExportFailed: ("retune.model.export_failed", "model_id"),
    deployment.DeploymentReady: ("retune.deployment.ready", "slot"),
    deployment.DeploymentFailed: ("retune.deployment.failed", "slot"),
    deployment.DeploymentStopped: ("retune.deployment.stopped", "slot"),
    cost.CostAccrued: ("retune.cost.accrued", "job_id"),
    cost.BudgetReached: ("retune.budget.reached", "job_id"),
    sweep.SweepEnded: ("retune.sweep.ended", "sweep_id"),
    sweep.TrialEnded: ("retune.sweep.trial_ended", "job_id"),
    alert.AlertRaised: ("retune.alert.raised", "job_id"),
    alert.AlertCleared: ("retune.alert.cleared", "job_id"),
    CommandRefused: ("retune.command.refused", "subject_id"),
}
"""Facts that name their tenant: the type of the event, and the field with the id of what it is about."""

EVENT_TYPES = tuple(sorted(event_type for event_type, _ in EVENTS.values()))


def event_of(fact: Message, *, event_id: str, time: datetime) -> Event | None:
    """Return what endpoints are sent of the fact; None for facts that are no event of webhooks, and what is muted."""
    if type(fact) not in EVENTS or (isinstance(fact, alert.AlertFact) and fact.is_muted):
        return None
    event_type, id_field = EVENTS[type(fact)]
    subject_id = str(getattr(fact, id_field))
    data: dict[str, object] = {"id": subject_id}
    if not event_type.startswith(OPENAI_PREFIX):
        ids = {name: getattr(fact, name, None) for name in IDS}
        data |= {name: value for name, value in ids.items() if value}
        data["message"] = sentence(fact)[1][:MAX_MESSAGE_CHARACTERS]
    subject = getattr(fact, "job_id", "") or subject_id
    return _event(event_type, data, subject=subject, event_id=event_id, time=time)


def sample_event(event_type: str, *, endpoint_id: str, event_id: str, time: datetime) -> Event:
    """Return an event of the type about nothing that there is."""
    data: dict[str, object] = {"id": f"{endpoint_id}-test"}
    if not event_type.startswith(OPENAI_PREFIX):
        data["message"] = "a test of the endpoint"
    return _event(event_type, data, subject=endpoint_id, event_id=event_id, time=time)


def _event(event_type: str, data: dict[str, object], *, subject: str, event_id: str, time: datetime) -> Event:
    name = f"evt_{event_id}"
    body = {
        "id": name,
        "object": "event",
        "type": event_type,
        "created_at": int(time.timestamp()),
        "data": data,
    }
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return Event(id=name, type=event_type, subject=subject, body=text)
