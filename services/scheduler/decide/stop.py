"""Asking an attempt to stop: the strongest reason and the earliest deadline win."""

from dataclasses import replace
from datetime import datetime

from schemas.job import JobStopping, StopReason
from schemas.lifecycle import JobState
from services.scheduler.decide.decision import Decision, Policy, StopOverdue, Timer, View
from services.scheduler.model import Attempt, Job, Stop


def ask_to_stop(job: Job, stop: Stop, view: View) -> Decision:
    """provisioning, running -> stopping."""
    stopping = job.to(JobState.STOPPING, run=replace(job.present, stop=stop))
    return Decision(stopping, (_job_stopping(stopping, stop),), last_facts_timer(stopping, view))


def strengthen(job: Job, asked: Stop) -> Decision:
    """Said again only if the reason grew stronger or the deadline earlier."""
    held = job.present.stop
    assert held is not None, f"job {job.id} is stopping without a reason"
    stronger = asked if _strength(job, asked) > _strength(job, held) else held
    merged = replace(stronger, since=held.since, deadline=min(held.deadline, asked.deadline))
    if merged == held:
        return Decision(job)
    stopping = job.with_run(stop=merged)
    return Decision(stopping, (_job_stopping(stopping, merged),))


def last_facts_timer(job: Job, view: View) -> tuple[Timer, ...]:
    """Return the timer to set once the nodes are released, and again where the stop becomes known after that."""
    if job.state not in (JobState.RUNNING, JobState.STOPPING) or job.facts.released_at is None:
        return ()
    return (Timer(StopOverdue(job_id=job.id, attempt=job.attempt), last_facts_due(job.present, view.policy)),)


def last_facts_due(run: Attempt, policy: Policy) -> datetime:
    """Until when the last fact and the verdicts are waited for."""
    stop, released_at = run.stop, run.facts.released_at
    assert released_at is not None, f"attempt {run.number} still holds its nodes"
    return max(released_at, stop.since if stop else released_at) + policy.last_facts_within


def _strength(job: Job, stop: Stop) -> int:
    """cancel > budget > final failure > pause > another failure, preemption > growth."""
    match stop.reason:
        case StopReason.CANCEL:
            return 5
        case StopReason.BUDGET:
            return 4
        case StopReason.FAILURE if stop.failure_class and not job.may_requeue(stop.failure_class):
            return 3
        case StopReason.PAUSE:
            return 2
        case StopReason.FAILURE | StopReason.PREEMPT:
            return 1
        case StopReason.GROW:
            return 0


def _job_stopping(job: Job, stop: Stop) -> JobStopping:
    return JobStopping(
        job_id=job.id,
        tenant=job.tenant,
        attempt=job.attempt,
        reason=stop.reason,
        failure_class=stop.failure_class,
        deadline=stop.deadline,
        message=stop.message,
    )
