"""One handler per message: load, decide, save, emit; in the same transaction whoever is next gets free nodes."""

from asyncio import to_thread
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from schemas.base import CommandRefused
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
from services.scheduler import queue_store, shared_rows, store
from services.scheduler.decide import (
    admission,
    attempt,
    commands,
    dataset,
    facts,
    growth,
    positions,
    queue,
)
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.decision import Decision, Policy, View
from services.scheduler.decide.ledger import Ledger, pool_of
from services.scheduler.decide.transitions import follow
from services.scheduler.model import Base, Dataset, Job
from shared.log import get_logger
from shared.messaging.tasks import work_nothing
from shared.messaging.unit import Task, Unit
from shared.service import Service

log = get_logger(__name__)

JOBS_TOGETHER = 50
"""Jobs that follow one message in one transaction: some six hundred statements."""

Handler = Callable[[Any, Unit], Awaitable[None]]
Announced = Mapping[str, QueuePositionChanged]
"""The queue position that was last emitted, by job."""
Since = Mapping[str, datetime]
"""Since when an elastic job could have more nodes, by job."""


class FollowDataset(Task, frozen=True):
    """A batch of the jobs without an attempt on a dataset; what is known of it by then decides."""

    event_id: str
    dataset_id: str
    after: str = ""
    """Id of the last job of the batch before."""

    @property
    def key(self) -> str:
        return f"{self.event_id}/{self.dataset_id}"


class FollowBase(Task, frozen=True):
    """A batch of the open jobs on files of a base model; what its name points to by then decides."""

    event_id: str
    base_model: str
    base_sha: str
    after: str = ""
    """Id of the last job of the batch before."""

    @property
    def key(self) -> str:
        return f"{self.event_id}/{self.base_sha}"


@dataclass
class Handlers:
    policy: Policy
    is_round_full: bool = False
    """Whether the last round of this process may have left nodes to somebody who waits."""

    async def submit(self, command: SubmitJob, unit: Unit) -> None:
        await self._submit(command, unit)

    async def _submit(
        self,
        command: SubmitJob,
        unit: Unit,
        *,
        continued: commands.Continued = commands.FROM_THE_BEGINNING,
    ) -> None:
        # In one order for all: two submissions may name the same datasets.
        datasets = {
            dataset_id: await shared_rows.find_dataset(unit, dataset_id)
            for dataset_id in sorted({command.dataset_id, *command.later_dataset_ids})
        }
        existing = await shared_rows.find_job(unit, command.job_id)
        base = await shared_rows.find_base(unit, command.spec.base_model)
        start = command.spec.start_from
        trained_by = await shared_rows.find_job(unit, start.job_id) if start else None
        admitted = commands.admit(
            command,
            existing,
            datasets[command.dataset_id],
            later_datasets=tuple(datasets[each] for each in command.later_dataset_ids),
            base=base,
            trained_by=trained_by,
            continued=continued,
            now=unit.now,
        )
        job = replace(admitted, origin=unit.origin)
        decision = commands.submit(job, await self._view_of_queue(unit, job))
        await shared_rows.add_job(unit, decision.job)
        await self._emit(unit, decision)
        if decision.job.state is JobState.QUEUED:
            await unit.afterwards(self.start_waiting)
        await unit.release(f"job:{job.id}")

    async def retry(self, command: RetryJob, unit: Unit) -> None:
        original = await shared_rows.find_job(unit, command.job_id)
        new_job = commands.like(original, command)
        await self._submit(new_job, unit, continued=commands.continued(original, command))

    async def cancel(self, command: CancelJob, unit: Unit) -> None:
        job = await shared_rows.find_job(unit, command.job_id)
        await self._apply(unit, commands.cancel(job, command, self._view(unit)))

    async def pause(self, command: PauseJob, unit: Unit) -> None:
        job = await shared_rows.find_job(unit, command.job_id)
        await self._apply(unit, commands.pause(job, command, self._view(unit)))

    async def resume(self, command: ResumeJob, unit: Unit) -> None:
        job = await shared_rows.find_job(unit, command.job_id)
        await self._apply(unit, commands.resume(job, command, await self._view_of_queue(unit, job)))

    async def dataset(self, event: dataset.DatasetEvent, unit: Unit) -> None:
        for incoming_dataset in dataset.datasets_of(event):
            known = await shared_rows.find_dataset(unit, incoming_dataset.dataset_id)
            if not dataset.supersedes(incoming_dataset, known):
                continue
            await store.save_dataset(unit.conn, incoming_dataset)
            await shared_rows.forget(unit)
            await self._follow_dataset(
                FollowDataset(
                    event_id=_event_id(unit),
                    tenant=incoming_dataset.tenant,
                    dataset_id=incoming_dataset.dataset_id,
                ),
                incoming_dataset,
                unit,
            )

    async def follow_dataset(self, task: FollowDataset, _: None, unit: Unit) -> None:
        known = await shared_rows.find_dataset(unit, task.dataset_id)
        assert known is not None, f"dataset {task.dataset_id} was saved before its jobs follow it"
        await self._follow_dataset(task, known, unit)

    async def _follow_dataset(self, task: FollowDataset, known: Dataset, unit: Unit) -> None:
        jobs = await store.jobs_on_dataset(
            unit.conn, task.dataset_id, after=task.after, at_most=JOBS_TOGETHER
        )
        ledger = await queue_store.get_ledger(unit.conn) if jobs else None
        are_queued = [
            await self._save(
                unit, facts.on_dataset(job, known, await self._view_of_queue(unit, job, ledger=ledger))
            )
            for job in jobs
        ]
        if any(are_queued):
            await unit.afterwards(self.start_waiting)
        if len(jobs) == JOBS_TOGETHER:
            await unit.start_task(task.model_copy(update={"after": jobs[-1].id}))

    def about_job(self, decide: Callable[[Job, Any, View], Decision]) -> Handler:
        """Make the handler for a fact or timer that names its job."""

        async def handle(event: Any, unit: Unit) -> None:
            job = await shared_rows.get_job(unit, event.job_id)
            await self._apply(unit, decide(job, event, self._view(unit)))

        return handle

    async def provisioning_failed(self, fact: ProvisioningFailed, unit: Unit) -> None:
        job = await shared_rows.get_job(unit, fact.job_id)
        await shared_rows.free_nodes(unit, fact.job_id, fact.attempt)
        view = await self._view_of_queue(unit, job)
        await self._apply(unit, facts.on_provisioning_failed(job, fact, view))
        await unit.afterwards(self.start_waiting)

    async def nodes_released(self, fact: NodesReleased, unit: Unit) -> None:
        job = await shared_rows.get_job(unit, fact.job_id)
        await shared_rows.free_nodes(unit, fact.job_id, fact.attempt)
        await self._apply(unit, facts.on_nodes_released(job, fact, self._view(unit)))
        await unit.afterwards(self.start_waiting)

    async def pool_changed(self, fact: PoolCapacityChanged, unit: Unit) -> None:
        await queue_store.lock_ledger(unit.conn)
        await queue_store.save_pool(unit.conn, pool_of(fact, now=unit.now))
        await shared_rows.forget(unit)
        await unit.afterwards(self.start_waiting)

    async def limit_devices(self, command: LimitDevices, unit: Unit) -> None:
        await queue_store.lock_ledger(unit.conn)
        await queue_store.save_device_limit(unit.conn, command.tenant, command.devices)
        await shared_rows.forget(unit)
        await unit.afterwards(self.start_waiting)

    async def adapters_stale(self, fact: AdaptersStale, unit: Unit) -> None:
        await store.save_base_model(unit.conn, fact.base_model, Base(fact.new_sha))
        await shared_rows.forget(unit)
        task = FollowBase(event_id=_event_id(unit), base_model=fact.base_model, base_sha=fact.stale_sha)
        await self.follow_base(task, None, unit)

    async def base_model_registered(self, fact: BaseModelRegistered, unit: Unit) -> None:
        await store.save_base_model(unit.conn, fact.name, Base(fact.base_sha, fact.capabilities))
        await shared_rows.forget(unit)
        task = FollowBase(event_id=_event_id(unit), base_model=fact.name, base_sha=fact.base_sha)
        await self.follow_base(task, None, unit)

    async def follow_base(self, task: FollowBase, _: None, unit: Unit) -> None:
        base = await store.find_base(unit.conn, task.base_model)
        assert base is not None, f"base model {task.base_model} was saved before its jobs follow it"
        is_stale = base.sha != task.base_sha
        find = store.jobs_on_base if is_stale else store.jobs_stale_on_base
        jobs = await find(unit.conn, task.base_model, task.base_sha, after=task.after, at_most=JOBS_TOGETHER)
        for job in jobs:
            view = self._view(unit)
            await self._save(
                unit,
                facts.on_base_replaced(job, base, view) if is_stale else facts.on_base_restored(job, view),
            )
        if len(jobs) == JOBS_TOGETHER:
            await unit.start_task(task.model_copy(update={"after": jobs[-1].id}))

    async def deployment_approved(self, fact: DeploymentApproved, unit: Unit) -> None:
        if fact.job_id is None:
            return  # a person asked for it, no job waits
        await store.lock_slot(unit.conn, fact.tenant, fact.slot)
        job = await shared_rows.get_job(unit, fact.job_id)
        known = await store.find_deployment(unit.conn, fact.tenant, fact.slot)
        await self._apply(unit, facts.on_deployment_approved(job, fact, known, self._view(unit)))

    async def deployment(self, fact: DeploymentReady | DeploymentFailed, unit: Unit) -> None:
        answer = facts.deployment_of(fact)
        await store.lock_slot(unit.conn, answer.tenant, answer.slot)
        await store.save_deployment(unit.conn, answer)
        await shared_rows.write_changes(unit)
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
        if not ledger.free_devices:
            return False
        waiting = await queue_store.candidates(unit.conn, now=unit.now, at_most=queue.GRANTS_OF_A_ROUND)
        grants = await self._grants(unit, queue.Round(waiting, ledger, now=unit.now))
        await self._begin(unit, grants)
        self.is_round_full = len(grants) == queue.GRANTS_OF_A_ROUND
        return self.is_round_full

    async def _grants(self, unit: Unit, waiting: queue.Round) -> list[queue.Grant]:
        """Return who starts in this round; those who are behind somebody of their kind are read together."""
        grants: list[queue.Grant] = []
        behind: dict[str, list[Candidate]] = {}
        while (grant := waiting.next()) is not None:
            grants.append(grant)
            if (left := queue.GRANTS_OF_A_ROUND - len(grants)) == 0:
                break
            if not waiting.has_use_for_one_like(grant.candidate):
                continue
            followers = behind.get(grant.candidate.job_id)
            if followers is None:
                followers = await queue_store.find_followers(
                    unit.conn, grant.candidate, now=unit.now, at_most=left
                )
            if followers:
                waiting.add(followers[0])
                behind[followers[0].job_id] = followers[1:]
        return grants

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

    async def grow(self, unit: Unit, since: Since) -> Since:
        """Stop the first elastic attempt that could long have had more nodes; one at a time, for what it is to get is
        still free in the ledger. Return since when each could have more."""
        if await queue_store.is_one_growing(unit.conn):
            return since
        attempts = await queue_store.elastic_attempts(
            unit.conn, scheduled_by=unit.now - self.policy.grow_after
        )
        if not attempts:
            return {}
        waiting = await queue_store.one_of_each_kind(unit.conn)
        ledger = await queue_store.get_ledger(unit.conn)
        sizes = growth.could_have(attempts, waiting, ledger, now=unit.now)
        latest = {job_id: since.get(job_id, unit.now) for job_id in sizes}
        view = self._view(unit)
        for job_id, nodes in sizes.items():
            if unit.now - latest[job_id] < self.policy.grow_after:
                continue
            job = await store.find_running_job(unit.conn, job_id)
            if job is not None and growth.is_worthwhile(job, view):
                await self._apply(unit, growth.grow(job, nodes, view))
                break
        return latest

    async def _begin(self, unit: Unit, grants: Sequence[queue.Grant]) -> None:
        jobs = await store.find_queued_jobs(unit.conn, [grant.candidate.job_id for grant in grants])
        view = self._view(unit)
        for grant in grants:
            if (job := jobs.get(grant.candidate.job_id)) is None:
                continue
            # The batch in which it hears that its files or its dataset are gone may still be to come.
            base = await shared_rows.find_other_base(unit, job.spec.base_model, job.spec.base_sha)
            decision = facts.on_base_replaced(job, base, view) if base else follow(Decision(job), view)
            if decision.job.state is JobState.QUEUED:
                decision = attempt.begin(job, grant.placement, view)
            await self._apply(unit, decision)

    async def _apply(self, unit: Unit, decision: Decision) -> None:
        if await self._save(unit, decision):
            await unit.afterwards(self.start_waiting)

    async def _save(self, unit: Unit, decision: Decision) -> bool:
        """Write and emit what was decided; return whether the job is in the queue."""
        if decision.ignored:
            if unit.envelope is not None:  # a batch passes over a job that ended meanwhile
                await store.record_ignored(
                    unit.conn, decision.job.id, unit.envelope, decision.ignored, at=unit.now
                )
            return False
        await shared_rows.save_job(unit, decision.job)
        await self._emit(unit, decision)
        return decision.job.state is JobState.QUEUED

    async def _emit(self, unit: Unit, decision: Decision) -> None:
        is_its_own = unit.envelope is not None and unit.envelope.key == decision.job.id
        await unit.emit(*decision.events, origin=None if is_its_own else decision.job.origin)
        for event in decision.events:
            log.info("job moved", job_id=event.key, event_type=event.type, attempt=decision.job.attempt)
        for timer in decision.timers:
            await unit.set_timer(timer.payload, at=timer.at)

    def _view(self, unit: Unit) -> View:
        return View(unit.now, self.policy)

    async def _view_of_queue(self, unit: Unit, job: Job | None, *, ledger: Ledger | None = None) -> View:
        """Return the view with what JobQueued says about capacity and duplicates."""
        config_hash = admission.planned(job).config_hash if job else None
        duplicate = await shared_rows.find_duplicate(unit, job, config_hash) if job and config_hash else None
        return View(unit.now, self.policy, ledger or await shared_rows.get_ledger(unit), duplicate)


def _event_id(unit: Unit) -> str:
    assert unit.envelope is not None, "what jobs follow comes as a message"
    return unit.envelope.id


async def _not_followed(task: Task, error: Exception, unit: Unit) -> None:
    raise error  # it is set aside, with an alarm: the jobs behind it must not be forgotten


def register(service: Service, policy: Policy) -> Handlers:
    handlers = Handlers(policy)
    service.on(SubmitJob, handlers.submit)
    service.on(RetryJob, handlers.retry)
    service.on(CancelJob, handlers.cancel)
    service.on(PauseJob, handlers.pause)
    service.on(ResumeJob, handlers.resume)
    service.on(LimitDevices, handlers.limit_devices)
    for event in (DatasetAccepted, DatasetReady, DatasetRejected, DatasetDeleted, CommandRefused):
        service.on(event, handlers.dataset, topic=DATASET_EVENTS)
    for task, done in ((FollowDataset, handlers.follow_dataset), (FollowBase, handlers.follow_base)):
        service.on_task(task, work=work_nothing, done=done, failed=_not_followed)
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
    return handlers
