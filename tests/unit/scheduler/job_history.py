"""Tells a job one thing after the other, by the routing that production uses."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from schemas.base import Message
from schemas.job import CancelJob, PauseJob, ResumeJob
from schemas.model import AdaptersStale, BaseModelRegistered, DeploymentApproved
from schemas.node import NodesReleased, ProvisioningFailed
from services.scheduler.decide import attempt, commands, facts
from services.scheduler.decide.decision import Decision, JobTimer, Timer, View
from services.scheduler.model import Base, Dataset, Deployment, Job, Placement
from tests.builders import NOON, a_ledger, a_placement

VIEW = View(NOON, ledger=a_ledger())
COMMANDS = {CancelJob: commands.cancel, PauseJob: commands.pause, ResumeJob: commands.resume}


@dataclass
class History:
    """`apply` applies messages at `now`; the events and timers of all decisions are kept."""

    job: Job
    now: datetime = NOON
    view: View = VIEW
    served: Deployment | None = None
    """What serving has said about the slot, whether a job waits for it or not."""
    events: list[Message] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def apply(self, *messages: Any) -> "History":
        for each in messages:
            self._apply(self._decide(each, replace(self.view, now=self.now)))
        return self

    def later(self, **delta: float) -> "History":
        self.now += timedelta(**delta)
        return self

    def schedule(self, placement: Placement | None = None) -> "History":
        view = replace(self.view, now=self.now)
        self._apply(attempt.begin(self.job, placement or a_placement(), view))
        return self

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def last(self, message: type[Message]) -> Any:
        return next(event for event in reversed(self.events) if isinstance(event, message))

    def _apply(self, decision: Decision) -> None:
        self.job = decision.job
        self.events += decision.events
        self.timers += decision.timers
        if decision.ignored:
            self.ignored.append(decision.ignored)

    def _decide(self, message: Any, view: View) -> Decision:
        match message:
            case ProvisioningFailed():
                return facts.on_provisioning_failed(self.job, message, view)
            case NodesReleased():
                return facts.on_nodes_released(self.job, message, view)
            case Dataset():
                return facts.on_dataset(self.job, message, view)
            case Deployment():
                return self._serving_answered(message, view)
            case DeploymentApproved():
                return facts.on_deployment_approved(self.job, message, self.served, view)
            case AdaptersStale():
                return facts.on_base_replaced(self.job, Base(message.new_sha), view)
            case BaseModelRegistered():
                return facts.on_base_restored(self.job, view)
            case JobTimer():
                return facts.ABOUT_TIME[type(message)](self.job, message, view)
            case CancelJob() | PauseJob() | ResumeJob():
                return COMMANDS[type(message)](self.job, message, view)
            case _:
                return facts.ABOUT_JOB[type(message)](self.job, message, view)

    def _serving_answered(self, answer: Deployment, view: View) -> Decision:
        self.served = answer
        waits = self.job.evaluation.approval is not None
        return facts.on_deployment(self.job, answer, view) if waits else Decision(self.job)
