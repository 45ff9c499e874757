"""Events into read models, tenants' commands into ours."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from schemas import access, alert, cost, dataset, evaluation, job, model, node, sweep, training
from schemas.base import CommandRefused, Delayed, FileRef, Message
from schemas.specification import DatasetSpec, JobSpec
from schemas.topics import ACCESS_EVENTS, DATASET_EVENTS, TENANT_COMMAND_TYPES
from services.gateway import (
    alerts,
    attempt_times,
    budgets,
    copies,
    deployments,
    gate,
    measurements,
    readmodels,
    results,
    store,
    submission,
    tables,
    trained,
)
from services.gateway.decide import operators_only
from services.gateway.model import DatasetAnswer, Job, JobWarning
from services.gateway.obstacles import obstacles
from services.gateway.projections import PROJECTIONS, envelope_of
from services.gateway.quotas import Quotas
from services.gateway.timeline import sentence
from services.gateway.usage import note_answer, send
from services.gateway.webhooks import store as webhook_store
from services.gateway.webhooks.events import event_of
from shared.errors import ParentUnknown, Refused
from shared.messaging.delivery import topic_named
from shared.messaging.unit import Unit
from shared.postgres.database import lock_name
from shared.service import Service

OF_A_MODEL = (model.ModelCommand, evaluation.ReevaluateModel)

TenantCommand = (
    job.JobMessage
    | dataset.SubmitDataset
    | dataset.DeleteDataset
    | model.ModelCommand
    | model.RollbackDeployment
    | model.UndeployModel
    | evaluation.ReevaluateModel
)


async def project(event: Message, unit: Unit) -> None:
    """Bring the read models up to date, and the job's timeline where the event is about a job."""
    if isinstance(event, OF_DATASETS):
        # The dataset's answer and a job that names it come on two topics: the second one writes the timeline.
        await lock_name(unit.conn, event.dataset_id)
    if projection := PROJECTIONS.get(type(event)):
        await projection.apply(event, unit)
    if follow := CONSEQUENCES.get(type(event)):
        await follow(event, unit)
    job_id, tenant, envelope = await _job_of(event, unit), getattr(event, "tenant", None), envelope_of(unit)
    if job_id and tenant:
        await tables.add_event(unit.conn, job_id, tenant, envelope.id, event, sentence(event), envelope.time)
    if isinstance(event, OF_DATASETS):
        await _add_dataset_answer(event, unit)
    if isinstance(event, AWAITED) and (command_id := _command_of(unit)):
        await tables.save_outcome(unit.conn, command_id, event)
    if tenant and (webhook := event_of(event, event_id=envelope.id, time=envelope.time)):
        await webhook_store.add(unit.conn, tenant, webhook, now=unit.now)
    await copies.copy_for_tenants(event, unit)


def _command_of(unit: Unit) -> str:
    """What accounts and ingest do in tasks has no cause, but the command's correlation."""
    envelope, is_of_task = envelope_of(unit), unit.topic in (ACCESS_EVENTS.name, DATASET_EVENTS.name)
    return envelope.causation_id or (envelope.correlation_id if is_of_task else "")


async def _job_of(event: Message, unit: Unit) -> str | None:
    """The job in whose timeline the event belongs."""
    is_twin = isinstance(event, sweep.TrialEnded) and event.state is sweep.TrialState.DUPLICATE
    if isinstance(event, NOT_IN_TIMELINE) or is_twin:
        return None
    if isinstance(event, CommandRefused):
        own = event.tenant and await readmodels.find_job(unit.conn, event.subject_id, event.tenant)
        return event.subject_id if own else None
    return getattr(event, "job_id", None)


async def _add_dataset_answer(event: job.JobSubmitted | dataset.DatasetFact, unit: Unit) -> None:
    """A dataset does not know its jobs: they name it, before its answer or after. The caller holds the dataset."""
    if isinstance(event, job.JobSubmitted):
        for dataset_id in (event.dataset_id, *event.later_dataset_ids):
            if answer := await readmodels.find_answer(unit.conn, dataset_id, event.tenant):
                await _add_answer([event.job_id], event.tenant, answer, unit)
        return
    envelope, data = envelope_of(unit), event.model_dump(mode="json")
    answer = DatasetAnswer(id=envelope.id, time=envelope.time, type=event.type, data=data)
    await tables.save_answer(unit.conn, event.dataset_id, event.tenant, answer)
    jobs = await readmodels.jobs_of_dataset(unit.conn, event.dataset_id, event.tenant)
    await _add_answer(jobs, event.tenant, answer, unit)


async def _add_answer(jobs: Sequence[str], tenant: str, answer: DatasetAnswer, unit: Unit) -> None:
    for job_id in jobs:
        fact = ANSWERS[answer.type].model_validate(answer.data)
        await tables.add_event(unit.conn, job_id, tenant, answer.id, fact, sentence(fact), answer.time)


async def tenant_command(defaults: Quotas, command: TenantCommand, unit: Unit) -> None:
    """Authorise, stamp the tenant from the topic, forward. The sender's own word on its tenant is not taken."""
    tenant = topic_named(unit.topic).tenant
    assert tenant is not None, f"{unit.topic} is no tenant's"
    if command.tenant != tenant:
        raise Refused(
            "wrong_tenant", f"tenant: found {command.tenant!r}, this topic is of {tenant!r}", param="tenant"
        )
    await _require_own(command, tenant, unit)
    if isinstance(command, job.SubmitJob):
        tier = await store.find_tier(unit.conn, tenant)
        spec = command.spec.model_copy(update={"tier": tier or command.spec.tier})
        command = command.model_copy(update={"spec": spec})
        known = await submission.known_of(unit.conn, command)
        for each in obstacles(spec, known):
            if each.is_final:
                raise Refused(each.code, each.message, param=f"spec.{each.param}")
        command = submission.with_least_memory(command, known)
    if isinstance(command, model.PromoteModel):
        by = f"{command.approved_by}, says a producer of tenant {tenant}"
        command = command.model_copy(update={"approved_by": by})
    if isinstance(command, dataset.SubmitDataset):
        await tables.note_dataset(unit.conn, command)
    await send(unit, tenant, defaults, command)


async def _require_own(command: TenantCommand, tenant: str, unit: Unit) -> None:
    if isinstance(command, dataset.SubmitDataset | job.SubmitJob):
        later = command.later_dataset_ids if isinstance(command, job.SubmitJob) else ()
        await _require_datasets((command.dataset_id, *later), tenant, unit)
        await _require_files(command.spec, tenant, unit)
        await _require_base(command.spec, unit)
    if isinstance(command, dataset.SubmitDataset) and (refusal := operators_only(command.spec.policy)):
        raise Refused(refusal.code, f"spec.{refusal.message}", param=f"spec.{refusal.param}")
    if isinstance(command, job.SubmitJob):
        await _require_start(command.spec, tenant, unit)
        _refuse_trial(command.spec)
    elif isinstance(command, job.JobMessage):
        row = await readmodels.find_job(unit.conn, command.job_id, tenant)
        if row is None and await store.is_asked(unit.conn, command.job_id, tenant):
            raise ParentUnknown(f"job:{command.job_id}")
        if row is None:
            raise Refused("unknown_job", f"job {command.job_id!r} does not exist", param="job_id")
        if isinstance(command, job.RetryJob):
            await _require_repeatable(command, row, unit)
    elif isinstance(command, OF_A_MODEL) and not await _has_model(command.model_id, tenant, unit):
        raise Refused("unknown_model", f"model {command.model_id!r} does not exist", param="model_id")


def _refuse_trial(spec: JobSpec) -> None:
    if spec.trial is not None:
        message = "spec.trial: found one, expected none: trials are submitted by their sweep"
        raise Refused("not_a_trial", message, param="spec.trial")


async def _require_datasets(dataset_ids: Iterable[str], tenant: str, unit: Unit) -> None:
    """A dataset that is not known yet may be on its way on another partition."""
    for dataset_id in dataset_ids:
        owner = await readmodels.find_tenant_of_dataset(unit.conn, dataset_id)
        if owner not in (None, tenant):
            raise Refused("unknown_dataset", f"dataset {dataset_id!r} does not exist", param="dataset_id")


async def _require_base(spec: DatasetSpec | JobSpec, unit: Unit) -> None:
    base = await store.find_base(unit.conn, spec.base_model)
    if base is None or base.base_sha != spec.base_sha:
        message = f"spec.base_model: {spec.base_model!r} at sha {spec.base_sha} is not registered"
        raise Refused("unknown_base_model", message, param="spec.base_model")


async def _require_start(spec: JobSpec, tenant: str, unit: Unit) -> None:
    """What the job starts from is the tenant's own, as its name says."""
    start = spec.start_from
    if start is None:
        return
    weights = await trained.find_trained(unit.conn, tenant, start.name)
    if weights is None:
        message = f"spec.start_from.name: the tenant has no model version or checkpoint {start.name!r}"
        raise Refused("unknown_model", message, param="spec.start_from.name")
    if weights.start_from != start:
        message = f"spec.start_from: found {start!r}, expected {weights.start_from!r}"
        raise Refused("other_model", message, param="spec.start_from")


async def _has_model(model_id: str, tenant: str, unit: Unit) -> bool:
    return await readmodels.find_model(unit.conn, tenant, model_id) is not None


async def _require_files(spec: DatasetSpec | JobSpec, tenant: str, unit: Unit) -> None:
    mix = getattr(spec, "safety_mix", None)
    later = enumerate(spec.later_stages if isinstance(spec, JobSpec) else ())
    named = {
        f"later_stages[{index}].{name}": file
        for index, stage in later
        for name, file in (("training_file", stage.training_file), ("validation_file", stage.validation_file))
    } | {
        "training_file": spec.training_file,
        "validation_file": spec.validation_file,
        "holdout": spec.holdout,
        "safety_mix.file": mix.file if mix else None,
    }
    for param, ref in named.items():
        if isinstance(ref, FileRef):
            stored_file = await store.hold_file(unit.conn, ref.file_id, tenant)
            if stored_file is None or stored_file.sha256 != ref.sha256:
                message = f"spec.{param}: file {ref.file_id!r} does not exist or has another sha256"
                raise Refused("unknown_file", message, param=f"spec.{param}")


async def _require_repeatable(command: job.RetryJob, original: Job, unit: Unit) -> None:
    """Raises Refused where a job like this one cannot be run again."""
    if why := await submission.why_stale(unit.conn, original.spec):
        raise Refused("stale_base", why, param="job_id")
    if command.from_checkpoint and (gone := await trained.why_not_continued(unit.conn, original)):
        raise Refused("no_checkpoint", gone, param="from_checkpoint")
    # What is continued has all that it started from.
    if not command.from_checkpoint and (
        gone := await trained.why_gone(unit.conn, original.tenant, original.spec)
    ):
        raise Refused("checkpoint_deleted", gone, param="job_id")
    if gone := await submission.deleted_file_of(unit.conn, original):
        raise Refused("file_deleted", gone, param="job_id")


async def _refused(event: CommandRefused, unit: Unit) -> None:
    """What the tenant's own producers, who read no topic, can see of it."""
    if event.tenant is None:
        return
    await note_answer(unit, event.tenant, event.subject_id)
    await store.answer_evaluation(unit.conn, event.command_id)
    await unit.release(f"job:{event.subject_id}")
    await tables.add_refusal(unit.conn, event, at=unit.now)
    # An id that is taken is that of another dataset, which continues.
    if event.command == sweep.SubmitSweep.type and event.code != "sweep_exists":
        await tables.refuse_sweep(unit.conn, event, at=unit.now)
    if event.command == dataset.SubmitDataset.type and event.code != "dataset_id_taken":
        await tables.refuse_dataset(unit.conn, event)


async def _cost_accrued(event: cost.CostAccrued, unit: Unit) -> None:
    await tables.save_cost(unit.conn, event)
    await attempt_times.note(unit, event)
    if event.charged == 0:
        await unit.conn.execute(budgets.REOPEN_BUDGET, event.tenant)


async def _budget_reached(event: cost.BudgetReached, unit: Unit) -> None:
    if event.budget == "month":
        await unit.conn.execute(budgets.SET_BUDGET_REACHED, event.tenant, unit.now)


async def _submitted(event: job.JobSubmitted, unit: Unit) -> None:
    await note_answer(unit, event.tenant, event.job_id)
    await unit.release(f"job:{event.job_id}")
    await submission.warn(unit, event)


async def _scheduled(event: job.JobScheduled, unit: Unit) -> None:
    await unit.release(tables.attempt_name(event.job_id, event.attempt))
    await submission.note_pool(unit, event)


async def _waits_at_backend(event: node.NodesQueued, unit: Unit) -> None:
    await tables.require_attempt(unit.conn, event.job_id, event.tenant, event.attempt)
    place = f"its turn in the queue of pool {event.pool}'s cluster"
    reason = f" ({event.waiting_for})" if event.waiting_for else ""
    await tables.wait_at_backend(unit.conn, event.job_id, event.attempt, place + reason)


async def _provisioned(event: node.NodesProvisioned, unit: Unit) -> None:
    await unit.release(tables.attempt_name(event.job_id, event.attempt))


async def _delayed(event: Delayed, unit: Unit) -> None:
    await tables.delay_jobs(unit.conn, event)


async def _succeeded(event: job.JobSucceeded, unit: Unit) -> None:
    await tables.end_job(unit.conn, event.job_id, at=unit.now)


async def _ended_early(event: job.JobFailed | job.JobCancelled, unit: Unit) -> None:
    await tables.end_job(unit.conn, event.job_id, at=unit.now)
    await results.begin(event, unit)


async def _dataset_deleted(event: dataset.DatasetDeleted, unit: Unit) -> None:
    """Mark every dataset of the version as deleted; the event names them all, which may be none."""
    deleted = {"state": "deleted", "dataset_version": event.dataset_version}
    detail = event.model_dump(mode="json", include={"dataset_ids"})
    for dataset_id in event.dataset_ids:
        row = {"dataset_id": dataset_id, "tenant": event.tenant, **deleted, "detail": detail}
        await tables.DATASET.save(unit.conn, row)


async def _base_registered(event: model.BaseModelRegistered, unit: Unit) -> None:
    await tables.compare_versions(unit.conn, event.name, event.base_sha)


async def _model_registered(event: model.ModelRegistered, unit: Unit) -> None:
    await tables.compare_version(unit.conn, event.model_id)
    await tables.name_model(
        unit.conn, event.job_id, event.tenant, full_name=event.full_name, model_id=event.model_id
    )


async def _stale(event: model.AdaptersStale, unit: Unit) -> None:
    message = (
        f"base model {event.base_model} has other files now: this job's model will not be promoted; "
        "cancel it and submit again"
    )
    warning = JobWarning(code="stale_base", message=message, param="model")
    await tables.warn_jobs_on_base(unit, event.base_model, event.stale_sha, envelope_of(unit).id, warning)


NOT_IN_TIMELINE = (
    training.StepsRecorded,
    evaluation.EvalProgressed,
    model.ModelExportProgressed,
    job.QueuePositionChanged,
    sweep.TrialSubmitted,
)
"""Facts about a job that are no part of its timeline: there are too many of them, or the job is not there yet."""

ANSWERS = {message.type: message for message in (dataset.DatasetReady, dataset.DatasetRejected)}
OF_DATASETS = (job.JobSubmitted, *ANSWERS.values())
"""A job's timeline has what became of its dataset."""

AWAITED = (
    CommandRefused,
    model.DeploymentApproved,
    model.DeploymentWithdrawn,
    model.ModelPromoted,
    model.ModelArchived,
    model.ModelExportStarted,
    model.ModelExported,
    model.ModelExportFailed,
    model.ModelExportDeleted,
    evaluation.EvalStarted,
    sweep.SweepSubmitted,
    sweep.SweepStopping,
    alert.AlertsMuted,
    alert.AlertsUnmuted,
    access.KafkaUserReady,
    access.KafkaUserRemoved,
    dataset.DatasetDeleted,
)
"""What a request that sent a command waits for; found by its causation id."""

CONSEQUENCES: dict[type[Message], Callable[[Any, Unit], Awaitable[None]]] = {
    CommandRefused: _refused,
    Delayed: _delayed,
    dataset.DatasetDeleted: _dataset_deleted,
    job.JobSubmitted: _submitted,
    job.JobScheduled: _scheduled,
    node.NodesQueued: _waits_at_backend,
    node.NodesProvisioned: _provisioned,
    job.JobEvaluating: results.begin,
    job.JobSucceeded: _succeeded,
    job.JobFailed: _ended_early,
    job.JobCancelled: _ended_early,
    training.CheckpointWritten: measurements.written,
    training.StepsRecorded: measurements.recorded,
    cost.CostAccrued: _cost_accrued,
    cost.BudgetReached: _budget_reached,
    access.TenantOpened: copies.tenant_opened,
    access.KafkaUserReady: copies.user_ready,
    access.KafkaUserRemoved: copies.user_removed,
    model.BaseModelRegistered: _base_registered,
    model.ModelRegistered: _model_registered,
    model.AdaptersStale: _stale,
    evaluation.GatePolicyPublished: gate.policy_published,
    evaluation.EvalStarted: gate.answered,
    evaluation.EvalProgressed: gate.progressed,
    evaluation.EvalPassed: gate.answered,
    evaluation.EvalFailed: gate.answered,
    evaluation.EvalInconclusive: gate.answered,
    **dict.fromkeys(deployments.FACTS, deployments.follow),
    alert.AlertsMuted: alerts.muted,
    alert.AlertsUnmuted: alerts.unmuted,
}
"""What follows from an event beside its row in `projections.PROJECTIONS`."""


def register(service: Service, defaults: Quotas) -> None:
    service.on_every_event(project)
    service.on(training.StepsRecorded, project)
    for command in TENANT_COMMAND_TYPES:
        service.on_tenant_command(command, partial(tenant_command, defaults))
