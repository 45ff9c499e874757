"""A trained artifact becomes a version, the gate's verdict moves it, people promote and archive it."""

from schemas.base import Delayed
from schemas.evaluation import EvalFailed, EvalInconclusive, EvalPassed
from schemas.job import Artifact, JobCancelled, JobEvaluating
from schemas.model import ArchiveModel, DeleteModel, PromoteModel, RegisterArtifact
from schemas.sweep import TrialChosen
from services.registry import store
from services.registry.clients import ArtifactCopies
from services.registry.decide import versions
from services.registry.decide.versions import Decision
from services.registry.model import Version
from shared.errors import ParentUnknown, Refused
from shared.failpoints import failpoint
from shared.messaging.unit import Task, Unit
from shared.service import Service


class CopyArtifact(Task):
    artifact: Artifact
    cancelled: bool
    is_further: bool = False
    """Beside what its job has made: a person asked for this checkpoint."""

    @property
    def key(self) -> str:
        job_id = self.artifact.job_id
        if self.is_further:
            return f"{job_id}/{self.artifact.bundle.manifest_sha256}"
        return f"{job_id}/cancelled" if self.cancelled else job_id


def register(service: Service, copies: ArtifactCopies, *, attempts: int) -> None:
    async def work(task: CopyArtifact) -> str:
        async with service.unit() as unit:
            shapes = await store.find_base_shapes(unit.conn, task.artifact.base_sha)
        return await copies.copy(task.artifact, shapes)

    service.on(JobEvaluating, evaluating)
    service.on(TrialChosen, trial_chosen)
    service.on(JobCancelled, cancelled)
    service.on(RegisterArtifact, register_artifact)
    service.on_task(
        CopyArtifact, work=work, done=copied, failed=not_copied, attempts=attempts, waits=copy_waits
    )
    service.on(EvalPassed, passed)
    service.on(EvalFailed, gate_failed)
    service.on(EvalInconclusive, inconclusive)
    service.on(PromoteModel, promote)
    service.on(ArchiveModel, archive)
    service.on(DeleteModel, not_available)


async def evaluating(event: JobEvaluating, unit: Unit) -> None:
    """Copy what a job trained; what a trial of a sweep trained when its sweep chooses it."""
    if event.trial is None:
        await unit.start_task(CopyArtifact(tenant=event.tenant, artifact=event, cancelled=False))


async def trial_chosen(event: TrialChosen, unit: Unit) -> None:
    await unit.start_task(CopyArtifact(tenant=event.tenant, artifact=event, cancelled=False))


async def cancelled(event: JobCancelled, unit: Unit) -> None:
    """Keep the job's model from being deployed, also where it is copied, registered or in the gate already."""
    await store.stop_auto_deploy(unit.conn, event.job_id)
    if event.artifact is not None:
        task = CopyArtifact(tenant=event.tenant, artifact=event.artifact, cancelled=True)
        await unit.start_task(task)


async def register_artifact(command: RegisterArtifact, unit: Unit) -> None:
    """Copy an artifact again after an operator's repair, or copy another checkpoint that a person asked for.

    The version is a job's like any other, in `dev`.
    """
    if command.bundle is not None:
        job_versions = await store.versions_of_job(unit.conn, command.job_id)
        artifact = versions.artifact_of_checkpoint(command, command.bundle, job_versions)
        task = CopyArtifact(tenant=command.tenant, artifact=artifact, cancelled=False, is_further=True)
        await unit.start_task(task)
        return
    refused = await store.find_refused_artifact(unit.conn, command.job_id, command.tenant)
    if refused is None:
        message = f"tenant {command.tenant} has no job {command.job_id} whose artifact could not be copied"
        raise Refused("no_refused_artifact", message, param="job_id")
    await unit.start_task(CopyArtifact.model_validate(refused))


async def copied(task: CopyArtifact, digest: str, unit: Unit) -> None:
    decision = versions.register(
        task.artifact,
        digest=digest,
        cancelled=task.cancelled,
        training_template_sha256=await store.find_training_template(unit.conn, task.artifact.base_sha),
    )
    if await store.add_version(unit.conn, decision.version, now=unit.now):
        await unit.emit(*decision.events)
    elif task.cancelled:
        await store.stop_auto_deploy(unit.conn, task.artifact.job_id)
    elif task.is_further:
        await unit.emit(versions.same_weights(decision.version))
    if not task.is_further:
        await store.forget_refused_artifact(unit.conn, task.artifact.job_id)
    await unit.release(f"model:{decision.version.model_id}")


async def copy_waits(task: CopyArtifact, waiting_for: str, unit: Unit) -> None:
    about = task.artifact
    await unit.emit(Delayed(subject_id=about.job_id, tenant=about.tenant, waiting_for=waiting_for))


async def not_copied(task: CopyArtifact, error: Exception, unit: Unit) -> None:
    reason = f"{error.args[0]} does not exist" if isinstance(error, KeyError) else str(error)
    about = task.artifact
    if not task.is_further:
        await store.save_refused_artifact(unit.conn, about.job_id, about.tenant, task.model_dump(mode="json"))
    await unit.emit(versions.refuse_artifact(task.artifact, reason=f"{type(error).__name__}: {reason}"))


async def passed(event: EvalPassed, unit: Unit) -> None:
    version = await get_version(unit, event.model_id)
    base = await store.find_base_model(unit.conn, version.base_model)
    slot = await store.get_slot(unit.conn, version.tenant, version.full_name)
    failpoint("registry.promote.before")
    current_sha = base.base_sha if base else None
    await _apply(unit, versions.on_eval_passed(version, slot, event, current_sha=current_sha))


async def gate_failed(event: EvalFailed, unit: Unit) -> None:
    version = await get_version(unit, event.model_id)
    serving = await store.slots_serving(unit.conn, [version.model_id])
    await _apply(unit, versions.on_eval_failed(version, serving, event))


async def inconclusive(event: EvalInconclusive, unit: Unit) -> None:
    version = await get_version(unit, event.model_id)
    await _apply(unit, versions.on_eval_inconclusive(version, event))


async def promote(command: PromoteModel, unit: Unit) -> None:
    version = await of_tenant(unit, command.tenant, command.model_id)
    base = await store.find_base_model(unit.conn, version.base_model)
    await _apply(unit, versions.promote(version, command, current_sha=base.base_sha if base else None))


async def archive(command: ArchiveModel, unit: Unit) -> None:
    version = await of_tenant(unit, command.tenant, command.model_id)
    serving = await store.slots_serving(unit.conn, [version.model_id])
    await _apply(unit, versions.archive(version, serving, command, now=unit.now))


async def not_available(command: DeleteModel, unit: Unit) -> None:
    await of_tenant(unit, command.tenant, command.model_id)
    raise Refused("not_available_yet", f"{command.type} is not available yet", subject_id=command.model_id)


async def of_tenant(unit: Unit, tenant: str, name: str) -> Version:
    """Return a version by id or full name. Raises Refused: another tenant's is as unknown as one that never was."""
    version = await store.find_version_of(unit.conn, tenant, name)
    if version is None:
        raise Refused("unknown_model", f"tenant {tenant} has no model {name!r}", param="model_id")
    return version


async def get_version(unit: Unit, model_id: str) -> Version:
    version = await store.find_version(unit.conn, model_id)
    if version is None:
        raise ParentUnknown(f"model:{model_id}")
    return version


async def _apply(unit: Unit, decision: Decision) -> None:
    await store.save_version(unit.conn, decision.version)
    for slot in decision.slots:
        await store.save_slot(unit.conn, slot)
    await unit.emit(*decision.events)
