"""Which jobs stay in a state beyond its deadline, although a timer or another service should have ended it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from schemas.lifecycle import JobState
from services.scheduler.decide.decision import Policy
from services.scheduler.decide.stop import last_facts_due
from services.scheduler.model import Attempt

MARGIN = timedelta(minutes=1)
"""Time for timers that are due and news that is under way."""
WITH_DEADLINES = (JobState.PROVISIONING, JobState.RUNNING, JobState.STOPPING, JobState.EVALUATING)


@dataclass(frozen=True)
class OpenJob:
    """A job in one of these states, with what its deadline follows from."""

    state: JobState
    run: Attempt
    gated_at: datetime | None


def count_overdue(open_jobs: Iterable[OpenJob], *, now: datetime, policy: Policy) -> Mapping[JobState, int]:
    """The jobs that are overdue in each state that has a deadline, also where there are none."""
    deadlines = [(job.state, deadline(job, policy)) for job in open_jobs]
    late = Counter(state for state, until in deadlines if until is not None and now > until + MARGIN)
    return {state: late[state] for state in WITH_DEADLINES}


def deadline(job: OpenJob, policy: Policy) -> datetime | None:
    """Return until when the job may stay in its state; None where it may stay for ever."""
    run = job.run
    if job.state is JobState.PROVISIONING:
        return None if run.facts.waits_at_backend else run.start_deadline + policy.start_slack
    if job.state is JobState.EVALUATING:
        return None if job.gated_at is None else job.gated_at + policy.deploy_within
    if run.facts.released_at is not None:
        return last_facts_due(run, policy)
    return run.ends_by if run.stop is None else run.stop.deadline
