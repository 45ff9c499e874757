"""Which jobs stay in a phase beyond its deadline, although a timer or another service should have ended it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.scheduler.decide.decision import Policy
from services.scheduler.decide.stop import settle_by
from services.scheduler.model import Attempt, JobState

MARGIN = timedelta(minutes=1)
"""For timers that are due and news that is under way."""
WITH_DEADLINES = (JobState.PROVISIONING, JobState.RUNNING, JobState.STOPPING, JobState.EVALUATING)


@dataclass(frozen=True)
class Phase:
    """Of a job in one of these states: what its deadline follows from."""

    state: JobState
    run: Attempt
    gated_at: datetime | None


def count_overdue(phases: Iterable[Phase], *, now: datetime, policy: Policy) -> Mapping[JobState, int]:
    """For every phase that has a deadline, also where no job stays too long."""
    deadlines = [(phase.state, deadline(phase, policy)) for phase in phases]
    late = Counter(state for state, until in deadlines if until is not None and now > until + MARGIN)
    return {state: late[state] for state in WITH_DEADLINES}


def deadline(phase: Phase, policy: Policy) -> datetime | None:
    """None where the phase may last as it is."""
    run = phase.run
    if phase.state is JobState.PROVISIONING:
        return run.start_deadline + policy.start_slack
    if phase.state is JobState.EVALUATING:
        return None if phase.gated_at is None else phase.gated_at + policy.deploy_within
    if run.facts.released_at is not None:
        return settle_by(run, policy)
    return run.ends_by if run.stop is None else run.stop.deadline
