"""What a decision is made of: what it may know, what it changes, what it wants to be reminded of."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

from schemas.base import Message, Value
from services.scheduler.decide.ledger import NOTHING, Ledger
from services.scheduler.model import Job


@dataclass(frozen=True)
class Policy:
    start_within: timedelta = timedelta(minutes=5)
    """Time from JobScheduled to the start deadline."""
    start_slack: timedelta = timedelta(seconds=30)
    """Time after the start deadline for news that is under way."""
    abrupt_stop: timedelta = timedelta(seconds=30)
    """Time to end what nothing can be saved from."""
    last_facts_within: timedelta = timedelta(minutes=10)
    """Time after the nodes are gone, for the attempt's last fact and the verdicts on its bundles."""
    deploy_within: timedelta = timedelta(minutes=10)
    """Time after the gate was passed, for serving to answer."""
    many_preemptions: int = 3
    preemption_window: timedelta = timedelta(minutes=10)
    preemption_backoff: timedelta = timedelta(minutes=1)
    """Pause from the third preemption within the window on; doubles with each further one."""
    failure_backoff: timedelta = timedelta(seconds=5)
    """Pause before the second requeue of a class; doubles with each further one. The first requeue comes at once."""
    longest_failure_backoff: timedelta = timedelta(minutes=5)
    grow_after: timedelta = timedelta(minutes=5)
    """Time for which an elastic attempt has run, could have had more nodes, and will run on, before it is stopped to
    continue on them."""


@dataclass(frozen=True)
class View:
    """All that a decision may know beside the job and the message."""

    now: datetime
    policy: Policy = Policy()
    ledger: Ledger = NOTHING
    duplicate_of: str | None = None
    """An earlier job of the tenant that runs or ran with this job's configuration."""


class JobTimer(Value):
    job_id: str


class StartOverdue(JobTimer):
    """The gang of the attempt should be complete by now."""

    attempt: int


class RunOverdue(JobTimer):
    """The attempt has had its nodes for as long as its job stated at most."""

    attempt: int


class StopOverdue(JobTimer):
    """Whatever is missing about the stopped attempt is not waited for any longer."""

    attempt: int


class DeploymentOverdue(JobTimer):
    """Serving should have answered by now."""


@dataclass(frozen=True)
class Timer:
    payload: JobTimer
    at: datetime


@dataclass(frozen=True)
class Decision:
    job: Job
    events: tuple[Message, ...] = ()
    timers: tuple[Timer, ...] = ()
    ignored: str = ""
    """Why what came in changed nothing, for the record."""

    def then(self, later: Self) -> Self:
        """Both, one after the other; `later` was decided on this decision's job."""
        return replace(
            later,
            events=self.events + later.events,
            timers=self.timers + later.timers,
            ignored=self.ignored or later.ignored,
        )
