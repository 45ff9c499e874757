"""One function per message: load, decide, save, emit."""

from schemas.job import JobEvaluating, JobScheduled, JobStageCompleted, JobStopping
from schemas.node import PreemptNode
from schemas.training import TrainingStarted
from services.provisioner import decide, store
from services.provisioner.handlers.apply import Due, apply
from shared.messaging.unit import Unit


async def job_scheduled(event: JobScheduled, unit: Unit) -> None:
    if await store.lock_attempt(unit.conn, event.job_id, event.attempt) is not None:
        return
    pool = await store.lock_pool(unit.conn, event.pool)
    failures = await store.list_failures_of_attempt(unit.conn, event.job_id, event.attempt - 1)
    await apply(unit, None, decide.on_job_scheduled(event, pool, now=unit.now, failures=failures))


async def job_stopping(event: JobStopping, unit: Unit) -> None:
    attempt = await store.lock_attempt(unit.conn, event.job_id, event.attempt)
    await apply(unit, attempt, decide.on_job_stopping(attempt, event, now=unit.now))


async def attempt_completed(event: JobEvaluating | JobStageCompleted, unit: Unit) -> None:
    if attempt := await store.lock_attempt(unit.conn, event.job_id, event.attempt):
        await apply(unit, attempt, decide.on_attempt_completed(attempt))


async def training_started(event: TrainingStarted, unit: Unit) -> None:
    if attempt := await store.lock_attempt(unit.conn, event.job_id, event.attempt):
        await apply(unit, attempt, decide.on_training_started(attempt))


async def preempt_node(command: PreemptNode, unit: Unit) -> None:
    attempt = await store.lock_attempt_of(unit.conn, command.node_id)
    decision = decide.on_preempt(
        attempt, command.node_id, notice_seconds=command.notice_seconds, source="operator", now=unit.now
    )
    await apply(unit, attempt, decision)


async def due(timer: Due, unit: Unit) -> None:
    if attempt := await store.lock_attempt(unit.conn, timer.job_id, timer.number):
        await apply(unit, attempt, decide.on_due(attempt, now=unit.now))
