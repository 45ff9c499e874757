"""One handler per message: load, decide, save, emit; in the same transaction whoever is next gets free nodes."""

import time
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from schemas.base import BundleRef, CommandRefused
from schemas.dataset import DatasetAccepted, DatasetDeleted, DatasetReady, DatasetRejected
from schemas.deployment import DeploymentFailed, DeploymentReady
from schemas.job import (
    CancelJob,
    LimitDevices,
    PauseJob,
    QueuePositionChanged,
    ResumeJob,
    RetryJob,
    SubmitJob,
)
from schemas.lifecycle import JobState
from schemas.model import AdaptersStale, BaseModelRegistered, DeploymentApproved
from schemas.node import NodesReleased, PoolCapacityChanged, ProvisioningFailed
from schemas.topics import DATASET_EVENTS
from services.scheduler import queue_store, store
from services.scheduler.decide import admission, attempt, commands, dataset, facts, overdue, positions, queue
from services.scheduler.decide.decision import Decision, Policy, View
from services.scheduler.model import Base, Job
from shared.log import get_logger
from shared.loops import Loop
from shared.messaging.unit import Unit
from shared.service import Service
from shared.telemetry.metrics import JOBS_OVERDUE

log = get_logger(__name__)

MEASURE_EVERY = timedelta(seconds=15)
ANNOUNCING_SHARE = 0.005
"""Of the time: with 25,000 jobs that wait, where each stands is worked out every few minutes."""

Handler = Callable[[Any, Unit], Awaitable[None]]
Announced = Mapping[str, QueuePositionChanged]
"""By job: what was last told of where it stands."""


@dataclass
class Handlers:
    policy: Policy
    is_round_full: bool = False
    """Whether the last round of this process may have left nodes to somebody who waits."""

    async def submit(self, command: SubmitJob, unit: Unit) -> None:
        await self._submit(command, unit, resume=None)

    async def _submit(self, command: SubmitJob, unit: Unit, *, resume: BundleRef | None) -> None:
        await store.lock_dataset(unit.conn, command.dataset_id)
        existing = await store.find_job(unit.conn, command.job_id)
        known = await store.find_dataset(unit.conn, command.dataset_id)
        base = await store.find_base(unit.conn, command.spec.base_model)
        start = command.spec.start_from
        trained_by = await store.find_job(unit.conn, start.job_id) if start else None
        job = commands.admit(
            command, existing, known, base=base, trained_by=trained_by, resume=resume, now=unit.now
        )
        await store.add_job(unit.conn, job)
        await self._apply(unit, commands.submit(job, await self._view_of_queue(unit, job)))
        await unit.release(f"job:{job.id}")

    async def retry(self, command: RetryJob, unit: Unit) -> None:
        original = await store.find_job(unit.conn, command.job_id)
        new_job = commands.like(original, command)
        await self._submit(new_job, unit, resume=commands.continued(original, command))

    async def cancel(self, command: CancelJob, unit: Unit) -> None:
        job = await store.find_job(unit.conn, command.job_id)
        await self._apply(unit, commands.cancel(job, command, self._view(unit)))

    async def pause(self, command: PauseJob, unit: Unit) -> None:
        job = await store.find_job(unit.conn, command.job_id)
        await self._apply(unit, commands.pause(job, command, self._view(unit)))

    async def resume(self, command: ResumeJob, unit: Unit) -> None:
        job = await store.find_job(unit.conn, command.job_id)
        await self._apply(unit, commands.resume(job, command, await self._view_of_queue(unit, job)))

    async def dataset(self, event: dataset.DatasetEvent, unit: Unit) -> None:
        for incoming_dataset in dataset.datasets_of(event):
            await store.lock_dataset(unit.conn, incoming_dataset.dataset_id)
            if not dataset.supersedes(
                incoming_dataset, await store.find_dataset(unit.conn, incoming_dataset.dataset_id)
            ):
                continue
            await store.save_dataset(unit.conn, incoming_dataset)
            for job in await store.jobs_on_dataset(unit.conn, incoming_dataset.dataset_id):
                view = await self._view_of_queue(unit, job)
                await self._apply(unit, facts.on_dataset(job, incoming_dataset, view))

    def about_job(self, decide: Callable[[Job, Any, View], Decision]) -> Handler:
        """For the facts and timers that name their job."""

        async def handle(event: Any, unit: Unit) -> None:
            job = await store.get_job(unit.conn, event.job_id)
            await self._apply(unit, decide(job, event, self._view(unit)))

        return handle

    async def provisioning_failed(self, fact: ProvisioningFailed, unit: Unit) -> None:
        job = await store.get_job(unit.conn, fact.job_id)
        await store.free_nodes(unit.conn, fact.job_id, fact.attempt, at=unit.now)
        view = await self._view_of_queue(unit, job)
        await self._apply(unit, facts.on_provisioning_failed(job, fact, view))
        await self.start_waiting(unit)

    async def nodes_released(self, fact: NodesReleased, unit: Unit) -> None:
        job = await store.get_job(unit.conn, fact.job_id)
        await store.free_nodes(unit.conn, fact.job_id, fact.attempt, at=unit.now)
        await self._apply(unit, facts.on_nodes_released(job, fact, self._view(unit)))
        await self.start_waiting(unit)

    async def pool_changed(self, fact: PoolCapacityChanged, unit: Unit) -> None:
        await queue_store.lock_ledger(unit.conn)
        await queue_store.save_pool(unit.conn, queue.pool_of(fact, now=unit.now))
        await self.start_waiting(unit)

    async def limit_devices(self, command: LimitDevices, unit: Unit) -> None:
        await queue_store.lock_ledger(unit.conn)
        await queue_store.save_device_limit(unit.conn, command.tenant, command.devices)
        await self.start_waiting(unit)

    async def adapters_stale(self, fact: AdaptersStale, unit: Unit) -> None:
        await store.save_base_model(unit.conn, fact.base_model, Base(fact.new_sha))
        for job in await store.jobs_on_base(unit.conn, fact.stale_sha):
            await self._apply(unit, facts.on_adapters_stale(job, fact, self._view(unit)))

    async def base_model_registered(self, fact: BaseModelRegistered, unit: Unit) -> None:
        await store.save_base_model(unit.conn, fact.name, Base(fact.base_sha, fact.capabilities))
        for job in await store.jobs_stale_on_base(unit.conn, fact.base_sha):
            await self._apply(unit, facts.on_base_model_registered(job, fact, self._view(unit)))

    async def deployment_approved(self, fact: DeploymentApproved, unit: Unit) -> None:
        if fact.job_id is None:
            return  # a person asked for it, no job waits
        await store.lock_slot(unit.conn, fact.tenant, fact.slot)
        job = await store.get_job(unit.conn, fact.job_id)
        known = await store.find_deployment(unit.conn, fact.tenant, fact.slot)
        await self._apply(unit, facts.on_deployment_approved(job, fact, known, self._view(unit)))

    async def deployment(self, fact: DeploymentReady | DeploymentFailed, unit: Unit) -> None:
        answer = facts.deployment_of(fact)
        await store.lock_slot(unit.conn, answer.tenant, answer.slot)
        await store.save_deployment(unit.conn, answer)
        for job in await store.jobs_waiting_for(unit.conn, answer):
            await self._apply(unit, facts.on_deployment(job, answer, self._view(unit)))

    async def start_waiting(self, unit: Unit) -> bool:
        """Start who is next while nodes are free; whether there may be more.

        The ledger's lock makes rounds take turns.
        """
        self.is_round_full = False
        if not await queue_store.is_anyone_queued(unit.conn):
            return False
        await queue_store.lock_ledger(unit.conn)
        ledger = await queue_store.get_ledger(unit.conn)
        if not ledger.free:
            return False
        waiting = await queue_store.candidates(unit.conn, now=unit.now, at_most=queue.GRANTS_OF_A_ROUND)
        grants = queue.Round(waiting, ledger, now=unit.now)
        for _ in range(queue.GRANTS_OF_A_ROUND):
            grant = grants.next()
            if grant is None:
                return False
            await self._begin(unit, grant)
            if follower := await queue_store.find_follower(unit.conn, grant.candidate, now=unit.now):
                grants.add(follower)
        self.is_round_full = True
        return True

    async def announce_positions(self, unit: Unit, announced: Announced) -> Announced:
        """Emit the position of each waiting job where it changed. Return what is announced after that."""
        if not await queue_store.is_anyone_queued(unit.conn):
            return {}
        waiting = await queue_store.everyone_queued(unit.conn)
        ledger = await queue_store.get_ledger(unit.conn)
        run_time = await queue_store.typical_run_time(unit.conn, now=unit.now)

        def look() -> list[QueuePositionChanged]:
            latest = positions.queue_entries(waiting, ledger, now=unit.now, run_time=run_time)
            return positions.changes(latest, announced, now=unit.now)

        changes = await to_thread(look)  # of a long queue it takes longer than messages should wait
        await unit.emit(*changes)
        before = {each.job_id: announced[each.job_id] for each in waiting if each.job_id in announced}
        return before | {change.job_id: change for change in changes}

    async def _begin(self, unit: Unit, grant: queue.Grant) -> None:
        if job := await store.find_queued_job(unit.conn, grant.candidate.job_id):
            await self._apply(unit, attempt.begin(job, grant.placement, self._view(unit)))

    async def _apply(self, unit: Unit, decision: Decision) -> None:
        if decision.ignored:
            await store.record_ignored(
                unit.conn, decision.job.id, unit.envelope, decision.ignored, at=unit.now
            )
            return
        await store.save_job(unit.conn, decision.job)
        await unit.emit(*decision.events)
        for event in decision.events:
            log.info("job moved", job_id=event.key, event_type=event.type, attempt=decision.job.attempt)
        for timer in decision.timers:
            await unit.set_timer(timer.payload, at=timer.at)
        if decision.job.state is JobState.QUEUED:
            await self.start_waiting(unit)

    def _view(self, unit: Unit) -> View:
        return View(unit.now, self.policy)

    async def _view_of_queue(self, unit: Unit, job: Job | None) -> View:
        """With what JobQueued says about capacity and duplicates."""
        plan = admission.plan_so_far(job) if job else None
        duplicate = await store.find_duplicate(unit.conn, job, plan.config_hash) if job and plan else None
        return View(unit.now, self.policy, await queue_store.get_ledger(unit.conn), duplicate)


def register(
    service: Service,
    policy: Policy,
    *,
    look_every: timedelta,
    look_anyway_every: timedelta,
    announce_every: timedelta,
) -> None:
    handlers = Handlers(policy)
    service.on(SubmitJob, handlers.submit)
    service.on(RetryJob, handlers.retry)
    service.on(CancelJob, handlers.cancel)
    service.on(PauseJob, handlers.pause)
    service.on(ResumeJob, handlers.resume)
    service.on(LimitDevices, handlers.limit_devices)
    for event in (DatasetAccepted, DatasetReady, DatasetRejected, DatasetDeleted, CommandRefused):
        service.on(event, handlers.dataset, topic=DATASET_EVENTS)
    service.on(ProvisioningFailed, handlers.provisioning_failed)
    service.on(NodesReleased, handlers.nodes_released)
    for fact, decide in facts.ABOUT_JOB.items():
        service.on(fact, handlers.about_job(decide))
    for timer, decide in facts.ABOUT_TIME.items():
        service.on_timer(timer, handlers.about_job(decide))
    service.on(PoolCapacityChanged, handlers.pool_changed)
    service.on(AdaptersStale, handlers.adapters_stale)
    service.on(BaseModelRegistered, handlers.base_model_registered)
    service.on(DeploymentApproved, handlers.deployment_approved)
    service.on(DeploymentReady, handlers.deployment)
    service.on(DeploymentFailed, handlers.deployment)

    service.every(look_every, _queue_look(service, handlers, look_anyway_every), singleton=True)
    _announce(service, handlers, announce_every)

    async def measure() -> None:
        async with service.unit() as unit:
            await measure_overdue(unit, policy)

    service.every(MEASURE_EVERY, measure)


def _queue_look(service: Service, handlers: Handlers, anyway_every: timedelta) -> Loop:
    last_look = datetime.min.replace(tzinfo=UTC)

    async def look_at_queue() -> None:
        """Rounds for what no message tells: a back-off ended, an estimate changed, a round of a message was full."""
        nonlocal last_look
        is_full = True
        while is_full:
            async with service.unit() as unit:
                is_due = handlers.is_round_full or unit.now - last_look >= anyway_every
                if not is_due and not await queue_store.is_back_off_over(unit.conn, last_look, unit.now):
                    return
                is_full = await handlers.start_waiting(unit)
            last_look = unit.now

    return look_at_queue


def _announce(service: Service, handlers: Handlers, announce_every: timedelta) -> None:
    announced: Announced = {}
    rests_until = time.monotonic()

    async def forget_announced() -> None:
        """Another process may have led in between."""
        nonlocal announced
        announced = {}

    async def announce_positions() -> None:
        nonlocal announced, rests_until
        if (began := time.monotonic()) < rests_until:
            return
        async with service.unit() as unit:
            latest = await handlers.announce_positions(unit, announced)
        announced = latest
        rests_until = began + (time.monotonic() - began) / ANNOUNCING_SHARE

    service.on_lead(forget_announced)
    service.every(announce_every, announce_positions, singleton=True)


async def measure_overdue(unit: Unit, policy: Policy) -> None:
    """Count from the rows, so that a new process tells it as well."""
    late = overdue.count_overdue(await store.open_jobs(unit.conn), now=unit.now, policy=policy)
    for state, jobs in late.items():
        JOBS_OVERDUE.labels(state).set(jobs)
