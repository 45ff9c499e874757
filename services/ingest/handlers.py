"""From a SubmitDataset to its answer, and from a DeleteDataset to the end of the bytes."""

from datetime import timedelta

from schemas.base import Delayed
from schemas.dataset import DeleteDataset, SubmitDataset
from schemas.evaluation import BenchmarkRegistered, GatePolicyPublished, SafetySuiteRegistered
from schemas.job import (
    JobCancelled,
    JobEvaluating,
    JobFailed,
    JobPaused,
    JobRequeued,
    JobScheduled,
    JobStageCompleted,
    JobSucceeded,
)
from schemas.model import BaseModelRegistered
from schemas.specification import DatasetSpec
from services.ingest import decide, store
from services.ingest.clients import ValidationRequest, Validator
from services.ingest.model import BaseModel, Ready, Rejection, Source, VersionState
from shared.errors import ParentUnknown, Rejected
from shared.log import get_logger
from shared.messaging.unit import Task, Unit
from shared.service import Service

log = get_logger(__name__)

SWEEP_EVERY = timedelta(minutes=5)


class ValidateDataset(Task, frozen=True):
    version: str
    tenant: str
    spec: DatasetSpec
    base: BaseModel
    sources: tuple[Source, ...]
    answer_tokens: int | None = None
    """Length in tokens of the longest answer that the gate lets a model give; None: not published yet."""

    @property
    def key(self) -> str:
        return self.version


class DeleteVersion(Task, frozen=True):
    version: str

    @property
    def key(self) -> str:
        return self.version


class Ingest:
    def __init__(self, service: Service, validator: Validator) -> None:
        self._service = service
        self._validator = validator

    async def base_model_registered(self, event: BaseModelRegistered, unit: Unit) -> None:
        base = BaseModel(
            base_sha=event.base_sha,
            manifest_sha256=event.manifest_sha256,
            template_sha256=event.template_sha256,
            context_tokens=event.context_tokens,
        )
        await store.add_base_model(unit.conn, base)
        await unit.release(_parent(event.base_sha))

    async def benchmark_registered(self, event: BenchmarkRegistered, unit: Unit) -> None:
        source = Source(kind="benchmark", name=event.name, digest=event.digest, file=event.file)
        await store.save_source(unit.conn, source)

    async def safety_suite_registered(self, event: SafetySuiteRegistered, unit: Unit) -> None:
        source = Source(kind="suite", name=event.name, digest=event.digest, file=event.file)
        await store.save_source(unit.conn, source)

    async def policy_published(self, event: GatePolicyPublished, unit: Unit) -> None:
        await store.save_answer_tokens(unit.conn, event.answer_tokens)

    async def submit(self, command: SubmitDataset, unit: Unit) -> None:
        base = await store.find_base_model(unit.conn, command.spec.base_sha)
        if base is None:
            raise ParentUnknown(_parent(command.spec.base_sha))
        sources = await store.list_sources(unit.conn)
        answer_tokens = await store.find_answer_tokens(unit.conn)
        version_id = decide.version_id(
            command.tenant, command.spec, base.template_sha256, sources, answer_tokens=answer_tokens
        )
        known = await store.find_version(unit.conn, version_id)
        asked = await store.find_request(unit.conn, command.dataset_id)
        submission = decide.on_submit(
            command, base, sources, known=known, asked=asked, answer_tokens=answer_tokens
        )
        if known is None:
            await store.add_version(unit.conn, submission.version)
        elif submission.starts:
            await store.save_version(unit.conn, submission.version)
        await store.save_request(unit.conn, submission.request)
        await unit.emit(*submission.events)
        if submission.starts:
            await unit.start_task(
                ValidateDataset(
                    version=version_id,
                    tenant=command.tenant,
                    spec=command.spec,
                    base=base,
                    sources=tuple(sources),
                    answer_tokens=answer_tokens,
                )
            )

    async def validate(self, task: ValidateDataset) -> Ready | Rejection:
        request = ValidationRequest(
            task.version, task.tenant, task.spec, task.base, task.sources, task.answer_tokens
        )
        return await self._validator.validate(request)

    async def validated(self, task: ValidateDataset, outcome: Ready | Rejection, unit: Unit) -> None:
        version = await store.get_version(unit.conn, task.version)
        requests = await store.list_requests(unit.conn, task.version)
        verdict = decide.on_validated(version, outcome, requests)
        await store.save_version(unit.conn, verdict.version)
        await store.answer_requests(unit.conn, task.version)
        await unit.emit(*verdict.events)
        log.info("dataset validated", version=task.version, state=verdict.version.state)

    async def waits(self, task: ValidateDataset, waiting_for: str, unit: Unit) -> None:
        for request in await store.list_requests(unit.conn, task.version):
            if not request.is_answered:
                delayed = Delayed(
                    subject_id=request.dataset_id, tenant=request.tenant, waiting_for=waiting_for
                )
                await unit.emit(delayed)

    async def not_validated(self, task: ValidateDataset, error: Exception, unit: Unit) -> None:
        code = "file_missing" if isinstance(error, Rejected) else "infra"
        log.error("dataset could not be validated", version=task.version, error=str(error))
        rejection = Rejection(
            code=code, message=f"the dataset could not be validated: {error}", is_final=False
        )
        await self.validated(task, rejection, unit)

    async def delete(self, command: DeleteDataset, unit: Unit) -> None:
        version = await store.find_version(unit.conn, command.dataset_version)
        await store.save_version(unit.conn, decide.on_delete(command, version))
        await self._delete_if_unused(command.dataset_version, unit)

    async def delete_bytes(self, task: DeleteVersion) -> None:
        await self._validator.delete(task.version)

    async def bytes_deleted(self, task: DeleteVersion, result: None, unit: Unit) -> None:
        version = await store.get_version(unit.conn, task.version)
        await store.save_version(unit.conn, version.to(VersionState.DELETED, ready=None, rejection=None))
        requests = await store.list_requests(unit.conn, task.version)
        await unit.emit(*decide.deletions(version, [request.dataset_id for request in requests]))

    async def bytes_not_deleted(self, task: DeleteVersion, error: Exception, unit: Unit) -> None:
        """Log that the bytes stay. The version stays marked, and the sweep comes back to it."""
        log.error("dataset could not be deleted", version=task.version, error=str(error))

    async def job_uses(self, event: JobScheduled | JobEvaluating, unit: Unit) -> None:
        await store.open_use(unit.conn, event.job_id, event.dataset.version)

    async def job_rests(
        self,
        event: JobPaused | JobRequeued | JobStageCompleted | JobSucceeded | JobFailed | JobCancelled,
        unit: Unit,
    ) -> None:
        version_id = await store.close_use(unit.conn, event.job_id)
        if version_id is None:
            return
        version = await store.find_version(unit.conn, version_id)
        if version is not None and version.state is VersionState.DELETING:
            await self._delete_if_unused(version_id, unit)

    async def sweep(self) -> None:
        """Try again to delete marked versions whose deletion failed before."""
        async with self._service.unit() as unit:
            for version_id in await store.deletable(unit.conn):
                await unit.start_task(DeleteVersion(version=version_id))

    async def _delete_if_unused(self, version_id: str, unit: Unit) -> None:
        if not await store.is_used(unit.conn, version_id):
            await unit.start_task(DeleteVersion(version=version_id))


def register(service: Service, validator: Validator, *, validations_at_once: int) -> None:
    ingest = Ingest(service, validator)
    service.on_start(validator.clear_scratch)
    service.on(BaseModelRegistered, ingest.base_model_registered)
    service.on(BenchmarkRegistered, ingest.benchmark_registered)
    service.on(SafetySuiteRegistered, ingest.safety_suite_registered)
    service.on(GatePolicyPublished, ingest.policy_published)
    service.on(SubmitDataset, ingest.submit)
    service.on(DeleteDataset, ingest.delete)
    service.on(JobScheduled, ingest.job_uses)
    service.on(JobEvaluating, ingest.job_uses)
    for message in (JobPaused, JobRequeued, JobStageCompleted, JobSucceeded, JobFailed, JobCancelled):
        service.on(message, ingest.job_rests)
    service.on_task(
        ValidateDataset,
        work=ingest.validate,
        done=ingest.validated,
        failed=ingest.not_validated,
        concurrency=validations_at_once,
        waits=ingest.waits,
    )
    service.on_task(
        DeleteVersion, work=ingest.delete_bytes, done=ingest.bytes_deleted, failed=ingest.bytes_not_deleted
    )
    service.every(SWEEP_EVERY, ingest.sweep, singleton=True)


def _parent(base_sha: str) -> str:
    return f"base:{base_sha}"
