"""Rows of the table about an attempt under way: what follows from its facts in provisioning and running."""

from dataclasses import replace
from datetime import datetime, timedelta

from schemas.base import BundleRef, FailureClass, StartFrom
from schemas.elastic import with_nodes
from schemas.job import (
    JobEvaluating,
    JobRunning,
    JobScheduled,
    JobStage,
    JobStageCompleted,
    PauseReason,
    StopReason,
)
from schemas.lifecycle import JobState
from schemas.specification import JobSpec
from services.scheduler.decide.admission import job_queued
from services.scheduler.decide.candidate import longest_hold
from services.scheduler.decide.decision import Decision, RunOverdue, StartOverdue, Timer, View
from services.scheduler.decide.ending import artifact_fields, paused, requeue_or_fail
from services.scheduler.decide.stop import ask_to_stop, last_facts_due, last_facts_timer
from services.scheduler.model import REFILLED_BY_PROGRESS, Attempt, Evaluation, Job, Placement, Stop

NO_CAPACITY = "no_capacity"


def begin(job: Job, placement: Placement, view: View) -> Decision:
    """queued -> provisioning: the only place where the attempt number rises."""
    assert job.plan is not None, f"job {job.id} is scheduled without a plan"
    if job.waits_for_release:
        return Decision(replace(job, not_before=view.now + view.policy.abrupt_stop))
    longest = longest_hold(job.spec.resources)
    run = Attempt(
        number=job.attempt + 1,
        placement=placement,
        resume=job.resume,
        scheduled_at=view.now,
        start_deadline=view.now + view.policy.start_within,
        ends_by=None if longest is None else view.now + longest,
    )
    begun = job.to(
        JobState.PROVISIONING,
        run=run,
        # Older bundles can neither be resumed from nor be named again.
        verified=frozenset({job.resume} if job.resume else ()),
        corrupt=frozenset(),
        evaluation=Evaluation(),
    )
    fact = JobScheduled(
        job_id=job.id,
        tenant=job.tenant,
        attempt=run.number,
        spec=_of_size(job.plan.spec, placement.nodes),
        base_sha=job.spec.base_sha,
        dataset=job.plan.dataset,
        config_hash=job.plan.config_hash,
        resume=run.resume,
        pool=placement.pool,
        capacity_type=placement.capacity_type,
        nodes=placement.nodes,
        devices_per_node=placement.devices_per_node,
        grace_seconds=job.grace_seconds,
        start_deadline=run.start_deadline,
        device=placement.device,
        machines=placement.machines,
        stage=job.stage,
    )
    return Decision(begun, (fact,), start_timers(begun, view))


def _of_size(spec: JobSpec, nodes: int) -> JobSpec:
    """Return what an attempt on so many nodes trains by."""
    if spec.resources.min_nodes is None:
        return spec
    return spec.model_copy(update={"resources": with_nodes(spec.resources, nodes)})


def restarted_clock(job: Job, start_deadline: datetime, view: View) -> Job:
    """Let the time that the attempt may run count from now on."""
    longest = longest_hold(job.spec.resources)
    return job.with_run(
        start_deadline=start_deadline, ends_by=None if longest is None else view.now + longest
    )


def start_timers(job: Job, view: View) -> tuple[Timer, ...]:
    """Return the timers of an attempt whose times begin to count now."""
    overdue = StartOverdue(job_id=job.id, attempt=job.attempt)
    due = job.present.start_deadline + view.policy.start_slack
    return (Timer(overdue, due), *_run_timer(job, view))


def last_second(job: Job) -> datetime:
    """Return until when the attempt may run at most, before its grace."""
    ends_by = job.present.ends_by
    assert ends_by is not None, f"job {job.id} states no longest run time"
    return ends_by - timedelta(seconds=job.grace_seconds)


def _run_timer(job: Job, view: View) -> tuple[Timer, ...]:
    longest = job.spec.resources.max_run_seconds
    if longest is None:
        return ()
    return (Timer(RunOverdue(job_id=job.id, attempt=job.attempt), view.now + timedelta(seconds=longest)),)


def not_provisioned(job: Job, view: View) -> Decision | None:
    """provisioning -> queued, or by class: nothing is left at the engine, so there is nothing to stop."""
    unprovisioned = job.facts.unprovisioned
    if unprovisioned is None:
        return None
    if unprovisioned.code != NO_CAPACITY:
        return requeue_or_fail(job, FailureClass.INFRA, unprovisioned.message, view)
    pool = job.present.placement.pool
    queued = job.to(JobState.QUEUED, no_capacity_at={**job.no_capacity_at, pool: view.now})
    waiting_for = f"pool {pool} had no capacity: {unprovisioned.message}"
    return Decision(queued, (job_queued(queued, view, waiting_for=waiting_for),))


def failed(job: Job, view: View) -> Decision | None:
    """provisioning, running -> stopping(failure): NodeLost or TrainingFailed."""
    failure = job.facts.failure
    if failure is None:
        return None
    stop = Stop(
        StopReason.FAILURE, view.now, failure.deadline, failure.message, failure_class=failure.failure_class
    )
    return ask_to_stop(job, stop, view)


def preempted(job: Job, view: View) -> Decision | None:
    """provisioning, running -> stopping(preempt)."""
    preemption = job.facts.preemption
    if preemption is None:
        return None
    return ask_to_stop(job, Stop(StopReason.PREEMPT, view.now, preemption.deadline, preemption.message), view)


def final_corrupt(job: Job, view: View) -> Decision | None:
    """provisioning, running -> stopping(failure infra): complete, but what it left cannot be used."""
    ending = job.facts.ending
    if ending is None or not ending.completed or ending.bundle not in job.corrupt:
        return None
    message = f"the final bundle at step {ending.last_step} is corrupt"
    return ask_to_stop(job, infra_stop(message, view), view)


def stopped_unasked(job: Job, view: View) -> Decision | None:
    """provisioning, running -> stopping(preempt): the runner met a notice that we have not heard of."""
    ending = job.facts.ending
    if ending is None or ending.completed:
        return None
    message = f"training stopped at step {ending.last_step} though nobody had asked"
    deadline = view.now + view.policy.abrupt_stop
    return ask_to_stop(job, Stop(StopReason.PREEMPT, view.now, deadline, message), view)


def ended_unheard(job: Job, view: View) -> Decision | None:
    """running -> stopping(failure infra): its nodes are gone, and nobody has said how training ended."""
    if (
        job.facts.released_at is None
        or job.facts.ending is not None
        or view.now < last_facts_due(job.present, view.policy)
    ):
        return None
    message = (
        f"training had no nodes since {job.facts.released_at:%H:%M:%S} UTC, and its end was not reported"
    )
    return ask_to_stop(job, infra_stop(message, view), view)


def started(job: Job, view: View) -> Decision | None:
    """provisioning -> running."""
    if not job.facts.started:
        return None
    running = job.to(JobState.RUNNING)
    fact = JobRunning(job_id=job.id, tenant=job.tenant, attempt=job.attempt)
    return Decision(running, (fact,), last_facts_timer(running, view))


def completed(job: Job, view: View) -> Decision | None:
    """running, stopping (unless cancel or budget) -> evaluating, or to the next stage, where there is one."""
    ending, stop = job.facts.ending, job.present.stop
    if ending is None or not ending.completed or ending.bundle not in job.verified:
        return None
    if stop is not None and stop.reason in (StopReason.CANCEL, StopReason.BUDGET):
        return None
    if job.stage is not None and not job.stage.is_last:
        return next_stage(job, ending.bundle, view)
    fact = JobEvaluating(**artifact_fields(job, ending.bundle))
    return Decision(job.to(JobState.EVALUATING), (fact,))


def next_stage(job: Job, final: BundleRef, view: View) -> Decision:
    """-> queued, or paused where that was asked for: what is trained is where the next stage starts.

    What counted against the infrastructure ends with it, as with every bundle that an attempt leaves.
    """
    stage, stop = job.stage, job.present.stop
    assert stage is not None, f"job {job.id} has no stages"
    trained = job.best.bundle if job.best and final == job.resume else final
    start = StartFrom(
        name=f"stage {stage.number} of {job.id}", job_id=trained.job_id or job.id, bundle=trained
    )
    following = JobStage(
        number=stage.number + 1,
        num_stages=stage.num_stages,
        first_attempt=job.attempt + 1,
        steps_before=sum(plan.num_steps for plan in job.stage_plans[: stage.number]),
        start=start.model_copy(update={"bundle": trained.model_copy(update={"job_id": None})}),
    )
    queued = job.to(
        JobState.QUEUED,
        stage=following,
        plan=job.stage_plans[stage.number],
        verified=frozenset(),
        corrupt=frozenset(),
        best=None,
        requeues={each: n for each, n in job.requeues.items() if each not in REFILLED_BY_PROGRESS},
        queued_at=view.now,
        not_before=None,
    )
    if queued.waits_for_release:
        queued = replace(queued, not_before=view.now + view.policy.abrupt_stop)
    fact = JobStageCompleted(job_id=job.id, tenant=job.tenant, attempt=job.attempt, stage=following)
    decision = Decision(queued, (fact,))
    if stop is not None and stop.reason is StopReason.PAUSE:
        return decision.then(paused(queued, stop.pause_reason or PauseReason.USER))
    return decision


def overrun_stop(job: Job, view: View) -> Stop:
    """Stop an attempt that ran too long; it gets the time to save a bundle."""
    message = (
        f"the attempt ran longer than resources.max_run_seconds, {job.spec.resources.max_run_seconds:g} s"
    )
    deadline = view.now + timedelta(seconds=job.grace_seconds)
    return Stop(StopReason.FAILURE, view.now, deadline, message, failure_class=FailureClass.USER)


def infra_stop(message: str, view: View) -> Stop:
    deadline = view.now + view.policy.abrupt_stop
    return Stop(StopReason.FAILURE, view.now, deadline, message, failure_class=FailureClass.INFRA)
