"""One function per message: load, decide, save, emit."""

from dataclasses import dataclass

from pydantic import BaseModel

from schemas.job import JobScheduled, JobStopping
from schemas.node import NodesProvisioned, NodesReleased, ProvisioningFailed
from schemas.topics import AGENT_REPORTS
from schemas.training import (
    BundleUploaded,
    RunnerHeartbeat,
    RunnerPrepared,
    RunnerReport,
    RunnerStarted,
    RunnerStopped,
    StepReached,
)
from services.trainer_agent import decide, store
from services.trainer_agent.decide import Decision, Purpose
from services.trainer_agent.model import Attempt, Claim
from shared.log import get_logger
from shared.messaging.unit import Task, Unit
from shared.service import Service
from shared.signatures import signed_part

log = get_logger(__name__)


class Listen(BaseModel):
    """Timer: look whether a runner of the attempt has fallen silent."""

    job_id: str
    number: int
    tenant: str


class ReadReports(Task):
    """Task: apply all reports that are in the log now, then decide."""

    job_id: str
    number: int
    tenant: str
    purpose: Purpose

    @property
    def key(self) -> str:
        return f"{self.job_id}:{self.number}:{self.purpose}"


@dataclass
class Handlers:
    service: Service

    async def job_scheduled(self, event: JobScheduled, unit: Unit) -> None:
        for number in await store.open_numbers_below(unit.conn, event.job_id, event.attempt):
            old = await store.lock_attempt(unit.conn, event.job_id, number, tenant=event.tenant)
            await _apply(unit, old, decide.on_superseded(old))
        attempt = await store.lock_attempt(unit.conn, event.job_id, event.attempt, tenant=event.tenant)
        await _apply(unit, attempt, decide.on_job_scheduled(attempt, event, unit.origin))

    async def job_stopping(self, event: JobStopping, unit: Unit) -> None:
        attempt = await store.lock_attempt(unit.conn, event.job_id, event.attempt, tenant=event.tenant)
        await _apply(unit, attempt, decide.on_job_stopping(attempt, event))

    async def nodes_provisioned(self, event: NodesProvisioned, unit: Unit) -> None:
        attempt = await store.lock_attempt(unit.conn, event.job_id, event.attempt, tenant=event.tenant)
        await _apply(unit, attempt, decide.on_nodes_provisioned(attempt, event))

    async def provisioning_failed(self, event: ProvisioningFailed, unit: Unit) -> None:
        attempt = await store.lock_attempt(unit.conn, event.job_id, event.attempt, tenant=event.tenant)
        await _apply(unit, attempt, decide.on_provisioning_failed(attempt))

    async def nodes_released(self, event: NodesReleased, unit: Unit) -> None:
        attempt = await store.lock_attempt(unit.conn, event.job_id, event.attempt, tenant=event.tenant)
        await _apply(unit, attempt, decide.on_nodes_released(attempt, event))

    async def runner_heartbeat(self, claim: RunnerHeartbeat, unit: Unit) -> None:
        if reason := await _hear(unit, claim, step=claim.step):
            await _drop(unit, _claim_of(claim, unit), reason)

    async def step_reached(self, claim: StepReached, unit: Unit) -> None:
        await _hear(unit, claim, step=claim.step)
        await self.claimed(claim, unit)

    async def bundle_uploaded(self, claim: BundleUploaded, unit: Unit) -> None:
        await _hear(unit, claim, step=claim.bundle.step)
        await self.claimed(claim, unit)

    async def claimed(self, claim: RunnerReport, unit: Unit) -> None:
        await _judge(unit, _claim_of(claim, unit))

    async def listen(self, timer: Listen, unit: Unit) -> None:
        attempt = await store.lock_attempt(unit.conn, timer.job_id, timer.number, tenant=timer.tenant)
        decision = decide.on_silence_due(
            attempt, now=unit.now, listening_since=self.service.listening_since()
        )
        await _apply(unit, attempt, decision)

    async def read_reports(self, task: ReadReports) -> None:
        await self.service.caught_up(AGENT_REPORTS.name)

    async def reports_read(self, task: ReadReports, result: None, unit: Unit) -> None:
        attempt = await store.lock_attempt(unit.conn, task.job_id, task.number, tenant=task.tenant)
        decision = decide.on_reports_read(
            attempt, task.purpose, now=unit.now, listening_since=self.service.listening_since()
        )
        await _apply(unit, attempt, decision)

    async def reading_failed(self, task: ReadReports, error: Exception, unit: Unit) -> None:
        """Read the reports again: Kafka could not be asked, and without an answer nobody is called silent."""
        log.error("reports could not be read to their end", job_id=task.job_id, error=str(error))
        await unit.start_task(task)


def register(service: Service) -> None:
    handlers = Handlers(service)
    service.on(JobScheduled, handlers.job_scheduled)
    service.on(JobStopping, handlers.job_stopping)
    service.on(NodesProvisioned, handlers.nodes_provisioned)
    service.on(ProvisioningFailed, handlers.provisioning_failed)
    service.on(NodesReleased, handlers.nodes_released)
    service.on(RunnerStarted, handlers.claimed)
    service.on(RunnerHeartbeat, handlers.runner_heartbeat)
    service.on(RunnerPrepared, handlers.claimed)
    service.on(StepReached, handlers.step_reached)
    service.on(BundleUploaded, handlers.bundle_uploaded)
    service.on(RunnerStopped, handlers.claimed)
    service.on_timer(Listen, handlers.listen)
    service.on_task(
        ReadReports,
        work=handlers.read_reports,
        done=handlers.reports_read,
        failed=handlers.reading_failed,
        attempts=10,
        concurrency=2,
    )


def _claim_of(report: RunnerReport, unit: Unit) -> Claim:
    assert unit.envelope is not None, "claims come as messages"
    assert unit.record is not None, "claims come as records"
    return Claim(unit.envelope.id, report, signed_part(unit.record))


async def _hear(unit: Unit, report: RunnerReport, *, step: int) -> str:
    """Note that the runner lives, which any report of it shows. Return why it shows nothing."""
    public_keys = await store.find_public_keys(unit.conn, report.job_id, report.attempt)
    reason = decide.why_not_signed(public_keys, _claim_of(report, unit))
    if not reason:
        await store.hear_runner(unit.conn, report, step=step, at=unit.now)
    return reason


async def _judge(unit: Unit, claim: Claim) -> None:
    """Judge a claim, or keep it until it can be judged: its attempt is opened by facts alone."""
    report = claim.report
    attempt = await store.find_attempt(unit.conn, report.job_id, report.attempt)
    if attempt is None or not attempt.takes_claims:
        await store.keep_claim(unit.conn, claim, at=unit.now)
        return
    newest = await store.newest_number(unit.conn, report.job_id)
    decision = decide.on_claim(attempt, claim, now=unit.now, newest=newest)
    await _apply(unit, attempt, decision)
    if decision.dropped:
        await _drop(unit, claim, decision.dropped)


async def _drop(unit: Unit, claim: Claim, reason: str) -> None:
    await store.record_dropped(unit.conn, claim, reason, at=unit.now)
    log.warning("claim dropped", type=claim.report.type, attempt=claim.report.attempt, reason=reason)


async def _apply(unit: Unit, before: Attempt, decision: Decision) -> None:
    after = decision.attempt
    await store.save_attempt(unit.conn, before, after)
    await unit.emit(*decision.messages, origin=after.origin)
    who = {"job_id": after.job_id, "number": after.number, "tenant": after.tenant}
    if decision.listen_until is not None:
        await unit.set_timer(Listen(**who), at=decision.listen_until)
    if decision.read_reports is not None:
        await unit.start_task(ReadReports(**who, purpose=decision.read_reports))
    if after.takes_claims and not before.takes_claims:
        for claim in await store.take_claims(unit.conn, after.job_id, after.number):
            await _judge(unit, claim)
