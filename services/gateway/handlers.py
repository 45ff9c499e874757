"""Events into read models, tenants' commands into ours."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

from schemas import access, checkpoint, cost, dataset, deployment, evaluation, job, model, node, training
from schemas.base import CommandRefused, Delayed, FileRef, Message
from schemas.topics import ACCESS_EVENTS, LISTENS, TENANT_COMMAND_TYPES
from services.gateway import copies, gate, measurements, places, readmodels, results, store, submission
from services.gateway.decide import operators_only
from services.gateway.quotas import Quotas
from services.gateway.requests import NOT_AVAILABLE
from services.gateway.timeline import sentence
from services.gateway.usage import note_answer, send
from shared.errors import ParentUnknown, Refused
from shared.messaging.delivery import topic_named
from shared.messaging.unit import Unit
from shared.postgres.database import lock_name
from shared.service import Service

OF_A_MODEL = (model.ModelCommand, evaluation.ReevaluateModel)

Projection = Callable[[Any, Unit], Awaitable[None]]


async def project(event: Message, unit: Unit) -> None:
    """Bring the read models up to date, and the job's timeline where the event is about a job."""
    if isinstance(event, TOLD_TOGETHER):
        # The dataset's answer and a job that names it come on two topics: the second one tells the timeline.
        await lock_name(unit.conn, event.dataset_id)
    if update := PROJECTIONS.get(type(event)):
        await update(event, unit)
    job_id, tenant = await _job_of(event, unit), getattr(event, "tenant", None)
    assert unit.envelope is not None, "events come with an envelope"
    if job_id and tenant:
        await readmodels.add_event(
            unit.conn, job_id, tenant, unit.envelope.id, event, sentence(event), unit.envelope.time
        )
    if isinstance(event, TOLD_TOGETHER):
        await _tell_of_dataset(event, unit)
    if isinstance(event, AWAITED) and (command_id := _command_of(unit)):
        payload = event.model_dump(mode="json")
        await unit.conn.execute(readmodels.SAVE_OUTCOME, command_id, event.type, payload)
    await copies.copy_for_tenants(event, unit)


def _command_of(unit: Unit) -> str:
    """What accounts does in tasks has no cause, but the command's correlation."""
    assert unit.envelope is not None, "events come with an envelope"
    is_of_task = unit.topic == ACCESS_EVENTS.name
    return unit.envelope.causation_id or (unit.envelope.correlation_id if is_of_task else "")


async def _job_of(event: Any, unit: Unit) -> str | None:
    """The job in whose timeline the event belongs."""
    if isinstance(event, NOT_IN_TIMELINE):
        return None
    if isinstance(event, CommandRefused):
        own = event.tenant and await readmodels.find_job(unit.conn, event.subject_id, event.tenant)
        return event.subject_id if own else None
    return getattr(event, "job_id", None)


async def _tell_of_dataset(event: job.JobSubmitted | dataset.DatasetFact, unit: Unit) -> None:
    """A dataset does not know its jobs: they name it, before its answer or after. The caller holds the dataset."""
    assert unit.envelope is not None, "events come with an envelope"
    if isinstance(event, job.JobSubmitted):
        fact = await unit.conn.fetchval(readmodels.FIND_ANSWER, event.dataset_id, event.tenant)
        jobs = [event.job_id] if fact else []
    else:
        envelope, data = unit.envelope, event.model_dump(mode="json")
        fact = {"id": envelope.id, "time": envelope.time.isoformat(), "type": event.type, "data": data}
        await unit.conn.execute(readmodels.SAVE_ANSWER, event.dataset_id, event.tenant, fact)
        of_dataset = event.dataset_id, event.tenant
        jobs = [row["job_id"] for row in await unit.conn.fetch(readmodels.JOBS_OF_DATASET, *of_dataset)]
    for job_id in jobs:
        answer, at = ANSWERS[fact["type"]].model_validate(fact["data"]), datetime.fromisoformat(fact["time"])
        await readmodels.add_event(unit.conn, job_id, event.tenant, fact["id"], answer, sentence(answer), at)


async def tenant_command(defaults: Quotas, command: Any, unit: Unit) -> None:
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
    if isinstance(command, model.PromoteModel):
        by = f"{command.approved_by}, says a producer of tenant {tenant}"
        command = command.model_copy(update={"approved_by": by})
    if isinstance(command, dataset.SubmitDataset):
        await readmodels.note_dataset(unit.conn, command)
    await send(unit, tenant, defaults, command)


async def _require_own(command: Any, tenant: str, unit: Unit) -> None:
    if isinstance(command, dataset.SubmitDataset | job.SubmitJob):
        await _require_dataset(command.dataset_id, tenant, unit)
        await _require_files(command.spec, tenant, unit)
        await _require_base(command.spec, unit)
    if isinstance(command, dataset.SubmitDataset) and (refusal := operators_only(command.spec.policy)):
        raise Refused(refusal.code, f"spec.{refusal.message}", param=f"spec.{refusal.param}")
    if isinstance(command, job.SubmitJob):
        if command.spec.max_cost is not None:
            raise Refused("not_available_yet", f"spec.max_cost {NOT_AVAILABLE}", param="spec.max_cost")
        for each in await submission.obstacles_to(unit.conn, command.spec, tenant, command.dataset_id):
            if each.is_final:
                raise Refused(each.code, each.message, param=f"spec.{each.param}")
    elif isinstance(command, job.JobMessage):
        row = await readmodels.find_job(unit.conn, command.job_id, tenant)
        if row is None and await store.is_asked(unit.conn, command.job_id, tenant):
            raise ParentUnknown(f"job:{command.job_id}")
        if row is None:
            raise Refused("unknown_job", f"job {command.job_id!r} does not exist", param="job_id")
        if isinstance(command, job.RetryJob):
            await _require_repeatable(row, unit)
    elif isinstance(command, OF_A_MODEL) and not await _has_model(command.model_id, tenant, unit):
        raise Refused("unknown_model", f"model {command.model_id!r} does not exist", param="model_id")


async def _require_dataset(dataset_id: str, tenant: str, unit: Unit) -> None:
    """A dataset that is not known yet may be on its way on another partition."""
    owner = await unit.conn.fetchval(readmodels.TENANT_OF_DATASET, dataset_id)
    if owner not in (None, tenant):
        raise Refused("unknown_dataset", f"dataset {dataset_id!r} does not exist", param="dataset_id")


async def _require_base(spec: Any, unit: Unit) -> None:
    base = await store.find_base(unit.conn, spec.base_model)
    if base is None or base.base_sha != spec.base_sha:
        message = f"spec.base_model: {spec.base_model!r} at sha {spec.base_sha} is not registered"
        raise Refused("unknown_base_model", message, param="spec.base_model")


async def _has_model(model_id: str, tenant: str, unit: Unit) -> bool:
    return await readmodels.find_model(unit.conn, tenant, model_id) is not None


async def _require_files(spec: Any, tenant: str, unit: Unit) -> None:
    mix = getattr(spec, "safety_mix", None)
    named = {
        "training_file": spec.training_file,
        "validation_file": spec.validation_file,
        "holdout": spec.holdout,
        "safety_mix.file": mix.file if mix else None,
    }
    for param, ref in named.items():
        if isinstance(ref, FileRef):
            stored_file = await store.hold_file(unit.conn, ref.file_id, tenant)
            if stored_file is None or stored_file.ref.sha256 != ref.sha256:
                message = f"spec.{param}: file {ref.file_id!r} does not exist or has another sha256"
                raise Refused("unknown_file", message, param=f"spec.{param}")


async def _require_repeatable(job_row: Any, unit: Unit) -> None:
    """Raises Refused where a job like this one cannot be run again."""
    if why := await submission.why_stale(unit.conn, job_row["spec"]):
        raise Refused("stale_base", why, param="job_id")
    if gone := await submission.deleted_file_of(unit.conn, job_row):
        raise Refused("file_deleted", gone, param="job_id")


async def _refused(event: CommandRefused, unit: Unit) -> None:
    """What the tenant's own producers, who read no topic, can see of it."""
    if event.tenant is None:
        return
    await note_answer(unit, event.tenant, event.subject_id)
    await unit.conn.execute(store.ANSWER_EVALUATION, event.command_id)
    await unit.release(f"job:{event.subject_id}")
    refusal = (event.command_id, event.command, event.subject_id, event.code, event.message, event.param)
    await unit.conn.execute(readmodels.ADD_REFUSAL, event.tenant, *refusal, unit.now)
    # Elsewhere the request stands for another dataset, which goes on.
    if event.command == dataset.SubmitDataset.type and event.code != "dataset_id_taken":
        detail = {"code": event.code, "message": event.message}
        await unit.conn.execute(readmodels.REFUSE_DATASET, event.subject_id, event.tenant, detail)


async def _submitted(event: job.JobSubmitted, unit: Unit) -> None:
    await readmodels.update_job(
        unit.conn,
        event.job_id,
        event.tenant,
        phase="validating",
        spec=event.spec.model_dump(mode="json"),
        dataset_id=event.dataset_id,
        retry_of=event.retry_of,
        created_at=event.submitted_at,
    )
    await note_answer(unit, event.tenant, event.job_id)
    await unit.release(f"job:{event.job_id}")
    await submission.warn(unit, event)


async def _queued(event: job.JobQueued, unit: Unit) -> None:
    await readmodels.update_job(
        unit.conn,
        event.job_id,
        event.tenant,
        phase="queued",
        waiting_for=event.waiting_for,
        num_steps=event.num_steps,
        dataset_version=event.dataset.version,
        config_hash=event.config_hash,
        duplicate_of=event.duplicate_of,
    )


async def _scheduled(event: job.JobScheduled, unit: Unit) -> None:
    await readmodels.update_job(
        unit.conn,
        event.job_id,
        event.tenant,
        phase="provisioning",
        attempt=event.attempt,
        waiting_for="",
        place=None,
        spec=event.spec.model_dump(mode="json"),
    )
    await unit.release(readmodels.attempt_name(event.job_id, event.attempt))


async def _delayed(event: Delayed, unit: Unit) -> None:
    await unit.conn.execute(readmodels.DELAY_JOBS, event.subject_id, event.tenant, event.waiting_for)


def _phase(phase: str) -> Projection:
    async def update(event: Any, unit: Unit) -> None:
        await readmodels.update_job(unit.conn, event.job_id, event.tenant, phase=phase)

    return update


async def _evaluating(event: job.JobEvaluating, unit: Unit) -> None:
    await readmodels.update_job(unit.conn, event.job_id, event.tenant, phase="evaluating", waiting_for="")
    await results.begin(event, unit)


async def _requeued(event: job.JobRequeued, unit: Unit) -> None:
    waiting = f"capacity, not before {event.not_before:%H:%M:%S}"
    await readmodels.update_job(unit.conn, event.job_id, event.tenant, phase="queued", waiting_for=waiting)


async def _succeeded(event: job.JobSucceeded, unit: Unit) -> None:
    await readmodels.update_job(
        unit.conn,
        event.job_id,
        event.tenant,
        phase="succeeded",
        waiting_for="",
        fine_tuned_model=event.fine_tuned_model,
        model_id=event.model_id,
        is_promoted=event.promoted,
        is_deployed=event.deployed,
        ending=event.message,
        finished_at=unit.now,
    )
    await readmodels.end_job(unit.conn, event.job_id, at=unit.now)


async def _failed(event: job.JobFailed, unit: Unit) -> None:
    error = {"code": event.code, "message": event.message, "param": event.param}
    error["failure_class"] = event.failure_class.value
    await readmodels.update_job(
        unit.conn, event.job_id, event.tenant, phase="failed", error=error, finished_at=unit.now
    )
    await readmodels.end_job(unit.conn, event.job_id, at=unit.now)
    await results.begin(event, unit)


async def _cancelled(event: job.JobCancelled, unit: Unit) -> None:
    await readmodels.update_job(
        unit.conn, event.job_id, event.tenant, phase="cancelled", finished_at=unit.now
    )
    await readmodels.end_job(unit.conn, event.job_id, at=unit.now)
    await results.begin(event, unit)


async def _accrued(event: cost.CostAccrued, unit: Unit) -> None:
    charged = event.total if event.charged_total is None else event.charged_total
    await readmodels.update_job(
        unit.conn, event.job_id, event.tenant, cost=charged, uncharged_cost=event.total - charged
    )


def _dataset(state: str) -> Projection:
    async def update(event: Any, unit: Unit) -> None:
        detail = event.model_dump(mode="json", exclude={"dataset_id", "tenant", "dataset_version"})
        version = getattr(event, "dataset_version", None)
        await unit.conn.execute(
            readmodels.SAVE_DATASET, event.dataset_id, event.tenant, state, version, detail
        )

    return update


async def _dataset_deleted(event: dataset.DatasetDeleted, unit: Unit) -> None:
    """It names every dataset of the version, which may be none."""
    detail = event.model_dump(mode="json", include={"dataset_ids"})
    rows = [(each, event.tenant, "deleted", event.dataset_version, detail) for each in event.dataset_ids]
    await unit.conn.executemany(readmodels.SAVE_DATASET, rows)


async def _base_registered(event: model.BaseModelRegistered, unit: Unit) -> None:
    detail = event.model_dump(mode="json", exclude={"name", "base_sha"})
    await unit.conn.execute(readmodels.SAVE_BASE, event.name, event.base_sha, detail, unit.now)
    await unit.conn.execute(readmodels.SET_STALE, event.name, event.base_sha)


async def _model_registered(event: model.ModelRegistered, unit: Unit) -> None:
    detail = event.model_dump(
        mode="json",
        include={
            "config_hash",
            "template_sha256",
            "training_template_sha256",
            "bundle",
            "kind",
            "rank",
        },
    )
    await unit.conn.execute(
        readmodels.SAVE_MODEL,
        event.model_id,
        event.tenant,
        event.full_name,
        event.digest,
        event.job_id,
        event.base_model,
        event.base_sha,
        event.dataset_version,
        event.stage,
        detail,
        unit.now,
    )
    of_job = event.job_id, event.tenant, event.full_name, event.model_id
    await unit.conn.execute(readmodels.ADD_MODEL_OF_JOB, *of_job)


async def _promoted(event: model.ModelPromoted, unit: Unit) -> None:
    await unit.conn.execute(readmodels.SET_STAGE, event.model_id, event.stage, event.eval_id)
    approval = (event.approved_by, event.approval_reason, event.accepted_without_holdout)
    await unit.conn.execute(readmodels.SET_APPROVAL, event.model_id, event.has_holdout, *approval)


async def _demoted(event: model.ModelDemoted, unit: Unit) -> None:
    await unit.conn.execute(readmodels.SET_STAGE, event.model_id, event.stage, None)
    await unit.conn.execute(readmodels.VOID_APPROVAL, event.model_id)


async def _archived(event: model.ModelArchived, unit: Unit) -> None:
    await unit.conn.execute(readmodels.SET_STAGE, event.model_id, "archived", None)


async def _stale(event: model.AdaptersStale, unit: Unit) -> None:
    message = (
        f"base model {event.base_model} has other files now: this job's model will not be promoted; "
        "cancel it and submit again"
    )
    warning = {"code": "stale_base", "message": message, "param": "model"}
    assert unit.envelope is not None, "events come with an envelope"
    for row in await unit.conn.fetch(readmodels.WARN_JOBS_ON_BASE, event.stale_sha, [warning]):
        of_job = row["job_id"], row["tenant"], unit.envelope.id
        await readmodels.add_warnings(unit.conn, *of_job, [warning], unit.now)


async def _replica_ready(event: deployment.ReplicaReady, unit: Unit) -> None:
    replica = event.replica
    await unit.conn.execute(
        readmodels.SAVE_REPLICA,
        replica.replica_id,
        replica.incarnation,
        event.pool,
        event.base_model,
        event.base_sha,
        event.served_base,
        replica.url,
    )


async def _replica_lost(event: deployment.ReplicaLost, unit: Unit) -> None:
    await unit.conn.execute(readmodels.LOSE_REPLICA, event.replica.replica_id, event.replica.incarnation)


def _route(state: str) -> Projection:
    async def update(event: Any, unit: Unit) -> None:
        # What failed to load leaves the version before it in place; a stale one must not answer any more.
        route_state = "stale" if getattr(event, "code", "") == "stale" else state
        await unit.conn.execute(
            readmodels.SAVE_ROUTE,
            event.tenant,
            event.slot,
            event.generation,
            getattr(event, "model_id", ""),
            getattr(event, "digest", ""),
            route_state,
            getattr(event, "reason", ""),
            getattr(event, "served_name", ""),
            [replica.model_dump(mode="json") for replica in getattr(event, "replicas", ())],
            unit.now,
        )

    return update


async def _pool(event: node.PoolCapacityChanged, unit: Unit) -> None:
    await unit.conn.execute(readmodels.SAVE_POOL, event.pool, event.model_dump(mode="json"))


NOT_IN_TIMELINE = (training.StepsRecorded, evaluation.EvalProgressed, job.QueuePositionChanged)
"""Facts about a job that are no part of its timeline: there are too many of them."""

ANSWERS = {message.type: message for message in (dataset.DatasetReady, dataset.DatasetRejected)}
TOLD_TOGETHER = (job.JobSubmitted, *ANSWERS.values())
"""A job's timeline has what became of its dataset."""

AWAITED = (
    CommandRefused,
    model.DeploymentApproved,
    model.DeploymentWithdrawn,
    model.ModelPromoted,
    model.ModelArchived,
    evaluation.EvalStarted,
    access.KafkaUserReady,
    access.KafkaUserRemoved,
)
"""What a request that sent a command waits for; found by its causation id."""

PROJECTIONS: dict[type[Message], Projection] = {
    CommandRefused: _refused,
    Delayed: _delayed,
    dataset.DatasetAccepted: _dataset("validating"),
    dataset.DatasetReady: _dataset("ready"),
    dataset.DatasetRejected: _dataset("rejected"),
    dataset.DatasetDeleted: _dataset_deleted,
    job.JobSubmitted: _submitted,
    job.JobQueued: _queued,
    job.QueuePositionChanged: places.changed,
    job.JobScheduled: _scheduled,
    job.JobRunning: _phase("running"),
    job.JobStopping: _phase("checkpointing"),
    job.JobPaused: places.paused,
    job.JobRequeued: _requeued,
    job.JobEvaluating: _evaluating,
    job.JobSucceeded: _succeeded,
    job.JobFailed: _failed,
    job.JobCancelled: _cancelled,
    training.TrainingPrepared: measurements.prepared,
    training.TrainingResumed: measurements.resumed,
    training.CheckpointWritten: measurements.written,
    training.TrainingCompleted: measurements.completed,
    training.StepsRecorded: measurements.recorded,
    checkpoint.CheckpointVerified: measurements.verdict("verified"),
    checkpoint.CheckpointCorrupt: measurements.verdict("corrupt"),
    checkpoint.CheckpointExpired: measurements.verdict("expired"),
    cost.CostAccrued: _accrued,
    access.TenantOpened: copies.tenant_opened,
    access.KafkaUserReady: copies.user_ready,
    access.KafkaUserRemoved: copies.user_removed,
    model.BaseModelRegistered: _base_registered,
    model.ModelRegistered: _model_registered,
    model.ModelPromoted: _promoted,
    model.ModelDemoted: _demoted,
    model.ModelArchived: _archived,
    model.AdaptersStale: _stale,
    model.DeploymentApproved: _route("pending"),
    model.DeploymentWithdrawn: _route("withdrawn"),
    evaluation.BenchmarkRegistered: gate.suite_registered,
    evaluation.SafetySuiteRegistered: gate.suite_registered,
    evaluation.GatePolicyPublished: gate.policy_published,
    evaluation.EvalStarted: gate.evaluated("running"),
    evaluation.EvalProgressed: gate.progressed,
    evaluation.EvalPassed: gate.evaluated("passed"),
    evaluation.EvalFailed: gate.evaluated("failed"),
    evaluation.EvalInconclusive: gate.evaluated("inconclusive"),
    deployment.ReplicaReady: _replica_ready,
    deployment.ReplicaLost: _replica_lost,
    deployment.DeploymentReady: _route("ready"),
    deployment.DeploymentIdle: _route("ready"),
    deployment.DeploymentFailed: _route("failed"),
    deployment.DeploymentStopped: _route("stopped"),
    node.PoolCapacityChanged: _pool,
}


def register(service: Service, defaults: Quotas) -> None:
    facts = {message for topic in LISTENS["gateway"] if not topic.is_commands for message in topic.messages}
    for message in sorted(facts, key=lambda each: each.type):
        service.on(message, project)
    for command in TENANT_COMMAND_TYPES:
        service.on_tenant_command(command, partial(tenant_command, defaults))
