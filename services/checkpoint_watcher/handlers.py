"""Verify what was written, expire what is no longer needed, look for what is late."""

from collections.abc import Sequence

from schemas.base import BundleRef, Value
from schemas.checkpoint import CheckpointCorrupt, CheckpointExpired, CheckpointOverdue, CheckpointVerified
from schemas.job import (
    JobCancelled,
    JobEvaluating,
    JobFailed,
    JobPaused,
    JobRequeued,
    JobScheduled,
    JobStage,
    JobStageCompleted,
    JobSubmitted,
    JobSucceeded,
)
from schemas.training import CheckpointWritten, TrainingCompleted, TrainingStarted, TrainingStopped
from services.checkpoint_watcher import decide, store
from services.checkpoint_watcher.clients import (
    Verdict,
    delete_abandoned,
    delete_all,
    delete_bundle,
    delete_logs,
    verify_bundle,
)
from services.checkpoint_watcher.model import Checkpoint, CheckpointState
from services.checkpoint_watcher.settings import Settings
from shared.log import get_logger
from shared.messaging.unit import Task, Unit
from shared.service import Service

log = get_logger(__name__)


class BundleTask(Task, frozen=True):
    job_id: str
    tenant: str
    bundle: BundleRef

    @property
    def key(self) -> str:
        return f"{self.job_id}/{self.bundle.attempt}/{self.bundle.step}/{self.bundle.manifest_sha256}"


class VerifyBundle(BundleTask, frozen=True):
    pass


class ExpireBundle(BundleTask, frozen=True):
    pass


class VerifyDue(Value):
    """The store stayed away through every try of the task."""

    task: VerifyBundle


class ExpireDue(Value):
    task: ExpireBundle


class SweepAttempt(Task, frozen=True):
    job_id: str
    attempt: int

    @property
    def key(self) -> str:
        return f"{self.job_id}/{self.attempt}"


class SweepDue(Value):
    job_id: str
    attempt: int


class ExpireJob(Task, frozen=True):
    """Deletes all bundles of an ended job: nothing resumes from them any more."""

    job_id: str
    attempts: int

    @property
    def key(self) -> str:
        return self.job_id


class JobDue(Value):
    job_id: str


class DeleteLogs(Task, frozen=True):
    """Deletes what the runners of an ended job wrote for people."""

    job_id: str

    @property
    def key(self) -> str:
        return self.job_id


class LogsDue(Value):
    job_id: str


class LookForCheckpoint(Value):
    job_id: str
    attempt: int


class Watcher:
    def __init__(self, service: Service, settings: Settings) -> None:
        self._objects = service.objects
        self._settings = settings

    async def job_submitted(self, event: JobSubmitted, unit: Unit) -> None:
        start, resume = event.spec.start_from, event.resume
        if resume is not None and resume.job_id is not None:
            await self._use(event.job_id, resume.job_id, resume, unit)
        if start is not None and start.digest is None:
            await self._use(event.job_id, start.job_id, start.bundle, unit)
        await self._use_of_stage(event.job_id, event.stage, unit)

    async def stage_completed(self, event: JobStageCompleted, unit: Unit) -> None:
        """Keep what the stage trained while the job is open: every attempt of the next stage may begin with it."""
        await self._use_of_stage(event.job_id, event.stage, unit)
        await self.job_at_rest(event, unit)

    async def _use_of_stage(self, job_id: str, stage: JobStage | None, unit: Unit) -> None:
        if stage is not None and stage.start is not None:
            await self._use(job_id, stage.start.job_id, stage.start.bundle, unit)

    async def _use(self, job_id: str, trained_by: str, bundle: BundleRef, unit: Unit) -> None:
        await store.lock_job(unit.conn, trained_by)
        await store.use_bundle(unit.conn, job_id, trained_by, bundle)

    async def job_scheduled(self, event: JobScheduled, unit: Unit) -> None:
        await store.open_attempt(unit.conn, event)
        await unit.release(store.name_of(event.job_id, event.attempt))

    async def training_started(self, event: TrainingStarted, unit: Unit) -> None:
        await store.require_attempt(unit.conn, event.job_id, event.attempt)
        await store.start_attempt(unit.conn, event.job_id, event.attempt, at=unit.now)
        await self._look_again(event.job_id, event.attempt, unit)

    async def checkpoint_written(self, event: CheckpointWritten, unit: Unit) -> None:
        await store.require_attempt(unit.conn, event.job_id, event.attempt)
        await store.lock_job(unit.conn, event.job_id)
        is_new = await store.add_checkpoint(
            unit.conn, event.job_id, event.tenant, event.bundle, event.kind, best=event.best, at=unit.now
        )
        await store.note_written(unit.conn, event.job_id, event.attempt, event.bundle.step, at=unit.now)
        if is_new:
            checkpoints = await store.list_checkpoints(unit.conn, event.job_id)
            written = _among(checkpoints, event.bundle)
            if written is not None and not decide.waits_for_best(written, checkpoints):
                await self._start_to_verify(written, unit)

    async def _start_to_verify(self, checkpoint: Checkpoint, unit: Unit) -> None:
        await unit.start_task(
            VerifyBundle(job_id=checkpoint.job_id, tenant=checkpoint.tenant, bundle=checkpoint.bundle)
        )

    async def attempt_ended(self, event: TrainingStopped | TrainingCompleted, unit: Unit) -> None:
        await store.require_attempt(unit.conn, event.job_id, event.attempt)
        await self._close(event.job_id, event.attempt, unit)

    async def job_at_rest(
        self, event: JobEvaluating | JobPaused | JobRequeued | JobStageCompleted, unit: Unit
    ) -> None:
        attempt = await store.find_attempt(unit.conn, event.job_id)
        if attempt is not None:
            await self._close(event.job_id, attempt.attempt, unit)

    async def job_over(self, event: JobSucceeded | JobFailed | JobCancelled, unit: Unit) -> None:
        await store.end_use(unit.conn, event.job_id)
        attempt = await store.find_attempt(unit.conn, event.job_id)
        if attempt is not None:
            await self._close(event.job_id, attempt.attempt, unit)
            await unit.set_timer(JobDue(job_id=event.job_id), at=unit.now + self._settings.keep_ended)
            logs_end = unit.now + self._settings.timing.history_retention
            await unit.set_timer(LogsDue(job_id=event.job_id), at=logs_end)

    async def job_due(self, due: JobDue, unit: Unit) -> None:
        attempt = await store.find_attempt(unit.conn, due.job_id)
        assert attempt is not None, "the timer of a job is set where it has an attempt"
        if await store.used_bundles(unit.conn, due.job_id):
            await unit.set_timer(due, at=unit.now + self._settings.sweep_after)
            return
        await unit.start_task(ExpireJob(job_id=due.job_id, attempts=attempt.attempt))

    async def expire_job(self, task: ExpireJob) -> None:
        await delete_all(self._objects, task.job_id, task.attempts)

    async def job_expired(self, task: ExpireJob, result: None, unit: Unit) -> None:
        await store.lock_job(unit.conn, task.job_id)
        for each in await store.list_checkpoints(unit.conn, task.job_id):
            await store.set_state(unit.conn, task.job_id, each.bundle, CheckpointState.EXPIRED)
            await unit.emit(CheckpointExpired(job_id=task.job_id, tenant=each.tenant, bundle=each.bundle))

    async def logs_due(self, due: LogsDue, unit: Unit) -> None:
        await unit.start_task(DeleteLogs(job_id=due.job_id))

    async def delete_logs(self, task: DeleteLogs) -> None:
        await delete_logs(self._objects, task.job_id)

    async def logs_deleted(self, task: DeleteLogs, result: None, unit: Unit) -> None:
        log.info("logs of an ended job deleted", job_id=task.job_id)

    async def logs_not_deleted(self, task: DeleteLogs, error: Exception, unit: Unit) -> None:
        log.error("logs of an ended job could not be deleted", job_id=task.job_id, error=str(error))
        await unit.set_timer(LogsDue(job_id=task.job_id), at=unit.now + self._settings.try_again_after)

    async def job_not_expired(self, task: ExpireJob, error: Exception, unit: Unit) -> None:
        log.error("bundles of an ended job could not be deleted", key=task.key, error=str(error))
        await unit.set_timer(JobDue(job_id=task.job_id), at=unit.now + self._settings.try_again_after)

    async def verify(self, task: VerifyBundle) -> Verdict:
        return await verify_bundle(self._objects, task.job_id, task.bundle)

    async def verified(self, task: VerifyBundle, verdict: Verdict, unit: Unit) -> None:
        await store.lock_job(unit.conn, task.job_id)
        checkpoints = await store.list_checkpoints(unit.conn, task.job_id)
        checkpoint = _among(checkpoints, task.bundle)
        if checkpoint is None:
            return  # deleted meanwhile, with all that its job had left
        if problem := verdict.problem or decide.problem_of_best(checkpoint, checkpoints):
            await self._corrupt(task, problem, unit)
        else:
            await self._whole(checkpoint, verdict.size_bytes, unit)
        for waiting in decide.waiting_for(task.bundle, checkpoints):
            await self._start_to_verify(waiting, unit)

    async def _whole(self, checkpoint: Checkpoint, size_bytes: int, unit: Unit) -> None:
        job_id, bundle = checkpoint.job_id, checkpoint.bundle
        await store.set_state(unit.conn, job_id, bundle, CheckpointState.VERIFIED, size_bytes=size_bytes)
        await unit.emit(
            CheckpointVerified(
                job_id=job_id,
                tenant=checkpoint.tenant,
                bundle=bundle,
                size_bytes=size_bytes,
                best=checkpoint.best,
            )
        )
        await self._expire_old(job_id, unit)

    async def not_verified(self, task: VerifyBundle, error: Exception, unit: Unit) -> None:
        """Try again later: that the bundle could not be read says nothing about it, so there is no verdict yet."""
        log.error("checkpoint could not be read", key=task.key, error=str(error))
        await unit.set_timer(VerifyDue(task=task), at=unit.now + self._settings.try_again_after)

    async def expire(self, task: ExpireBundle) -> None:
        await delete_bundle(self._objects, task.job_id, task.bundle)

    async def expired(self, task: ExpireBundle, result: None, unit: Unit) -> None:
        await store.lock_job(unit.conn, task.job_id)
        await store.set_state(unit.conn, task.job_id, task.bundle, CheckpointState.EXPIRED)
        await unit.emit(CheckpointExpired(job_id=task.job_id, tenant=task.tenant, bundle=task.bundle))

    async def not_expired(self, task: ExpireBundle, error: Exception, unit: Unit) -> None:
        """Try again later. The manifest may be gone already, so the bundle is not offered for resume again."""
        log.error("checkpoint could not be deleted", key=task.key, error=str(error))
        await unit.set_timer(ExpireDue(task=task), at=unit.now + self._settings.try_again_after)

    async def bundle_due(self, due: VerifyDue | ExpireDue, unit: Unit) -> None:
        await unit.start_task(due.task)

    async def sweep_due(self, due: SweepDue, unit: Unit) -> None:
        await unit.start_task(SweepAttempt(job_id=due.job_id, attempt=due.attempt))

    async def sweep(self, task: SweepAttempt) -> int:
        return await delete_abandoned(self._objects, task.job_id, task.attempt)

    async def swept(self, task: SweepAttempt, num_parts: int, unit: Unit) -> None:
        if num_parts:
            log.info("abandoned parts deleted", job_id=task.job_id, attempt=task.attempt, num_parts=num_parts)

    async def not_swept(self, task: SweepAttempt, error: Exception, unit: Unit) -> None:
        log.error("abandoned parts could not be deleted", key=task.key, error=str(error))
        due = SweepDue(job_id=task.job_id, attempt=task.attempt)
        await unit.set_timer(due, at=unit.now + self._settings.try_again_after)

    async def look_for_checkpoint(self, look: LookForCheckpoint, unit: Unit) -> None:
        attempt = await store.find_attempt(unit.conn, look.job_id)
        if attempt is None or attempt.attempt != look.attempt or not attempt.is_open:
            return
        if decide.is_overdue(attempt, now=unit.now, intervals=self._settings.overdue_intervals):
            await unit.emit(
                CheckpointOverdue(
                    job_id=attempt.job_id,
                    tenant=attempt.tenant,
                    attempt=attempt.attempt,
                    last_step=attempt.last_step,
                    last_written_at=attempt.last_written_at,
                )
            )
        await self._look_again(look.job_id, look.attempt, unit)

    async def _close(self, job_id: str, attempt: int, unit: Unit) -> None:
        closed = await store.close_attempt(unit.conn, job_id, attempt)
        if closed is not None:
            due = SweepDue(job_id=job_id, attempt=closed)
            await unit.set_timer(due, at=unit.now + self._settings.sweep_after)

    async def _look_again(self, job_id: str, number: int, unit: Unit) -> None:
        attempt = await store.find_attempt(unit.conn, job_id)
        if attempt is not None and attempt.attempt == number and attempt.is_open:
            at = decide.next_look(attempt, now=unit.now, intervals=self._settings.overdue_intervals)
            await unit.set_timer(LookForCheckpoint(job_id=job_id, attempt=number), at=at)

    async def _corrupt(self, task: VerifyBundle, problem: str, unit: Unit) -> None:
        await store.set_state(unit.conn, task.job_id, task.bundle, CheckpointState.CORRUPT)
        await unit.emit(
            CheckpointCorrupt(
                job_id=task.job_id, tenant=task.tenant, bundle=task.bundle, message=problem[:500]
            )
        )

    async def _expire_old(self, job_id: str, unit: Unit) -> None:
        checkpoints = await store.list_checkpoints(unit.conn, job_id)
        attempt = await store.find_attempt(unit.conn, job_id)
        used = await store.used_bundles(unit.conn, job_id)
        for old in decide.expirable(checkpoints, attempt, keep=self._settings.keep_verified, used=used):
            await store.set_state(unit.conn, job_id, old.bundle, CheckpointState.EXPIRING)
            await unit.start_task(ExpireBundle(job_id=job_id, tenant=old.tenant, bundle=old.bundle))


def _among(checkpoints: Sequence[Checkpoint], bundle: BundleRef) -> Checkpoint | None:
    return next((each for each in checkpoints if each.bundle == bundle), None)


def register(service: Service, settings: Settings) -> None:
    watcher = Watcher(service, settings)
    service.on(JobSubmitted, watcher.job_submitted)
    service.on(JobScheduled, watcher.job_scheduled)
    service.on(TrainingStarted, watcher.training_started)
    service.on(CheckpointWritten, watcher.checkpoint_written)
    service.on(TrainingStopped, watcher.attempt_ended)
    service.on(TrainingCompleted, watcher.attempt_ended)
    service.on(JobStageCompleted, watcher.stage_completed)
    for message in (JobEvaluating, JobPaused, JobRequeued):
        service.on(message, watcher.job_at_rest)
    for end in (JobSucceeded, JobFailed, JobCancelled):
        service.on(end, watcher.job_over)
    service.on_task(
        VerifyBundle,
        work=watcher.verify,
        done=watcher.verified,
        failed=watcher.not_verified,
        attempts=5,
        concurrency=2,
    )
    service.on_task(ExpireBundle, work=watcher.expire, done=watcher.expired, failed=watcher.not_expired)
    service.on_task(SweepAttempt, work=watcher.sweep, done=watcher.swept, failed=watcher.not_swept)
    service.on_task(
        ExpireJob, work=watcher.expire_job, done=watcher.job_expired, failed=watcher.job_not_expired
    )
    service.on_task(
        DeleteLogs, work=watcher.delete_logs, done=watcher.logs_deleted, failed=watcher.logs_not_deleted
    )
    service.on_timer(JobDue, watcher.job_due)
    service.on_timer(LogsDue, watcher.logs_due)
    service.on_timer(VerifyDue, watcher.bundle_due)
    service.on_timer(ExpireDue, watcher.bundle_due)
    service.on_timer(SweepDue, watcher.sweep_due)
    service.on_timer(LookForCheckpoint, watcher.look_for_checkpoint)
