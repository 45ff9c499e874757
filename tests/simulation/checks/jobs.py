"""job.events: only legal moves, the epoch, the resume point, what is evaluated and what succeeds."""

from typing import TYPE_CHECKING, Any

from schemas.base import BundleRef
from tests.simulation.checks.training import age_of
from tests.simulation.unit import Unit

if TYPE_CHECKING:
    from tests.simulation.world import World

TERMINAL = {"JobSucceeded", "JobFailed", "JobCancelled"}
_REST = {"JobPaused", "JobFailed", "JobCancelled"}
NEXT: dict[str, set[str]] = {
    "": {"JobSubmitted"},
    "JobSubmitted": {"JobQueued"} | _REST,
    "JobQueued": {"JobScheduled"} | _REST,
    "JobRequeued": {"JobScheduled"} | _REST,
    "JobScheduled": {"JobRunning", "JobStopping", "JobQueued", "JobRequeued", "JobFailed"},
    "JobStageCompleted": {"JobScheduled"} | _REST,
    "JobRunning": {"JobStopping", "JobStageCompleted", "JobEvaluating"},
    "JobStopping": {"JobStopping", "JobStageCompleted", "JobEvaluating", "JobRequeued"} | _REST,
    "JobPaused": {"JobSubmitted", "JobQueued", "JobFailed", "JobCancelled"},
    "JobEvaluating": {"JobSucceeded", "JobCancelled"},
}
"""Which fact of a job may follow which; written down from the design's table, not from the code."""


class JobChecks:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.last: dict[str, str] = {}
        """The newest fact of each job."""
        self.epochs: dict[str, int] = {}
        self.scheduled: set[tuple[str, int]] = set()
        self.stops: dict[tuple[str, int], Any] = {}
        """The newest JobStopping of each attempt."""
        self.evaluating: dict[str, Any] = {}
        self._heard: dict[str, set[BundleRef]] = {}
        self.on = dict.fromkeys(
            ("JobSubmitted", "JobQueued", "JobRunning", "JobPaused", "JobRequeued", "JobFailed", "JobCancelled"),
            self.moved,
        ) | {
            "JobScheduled": self.was_scheduled,
            "JobStageCompleted": self.stage_completed,
            "JobStopping": self.is_stopping,
            "JobEvaluating": self.is_evaluating,
            "JobSucceeded": self.succeeded,
        }  # fmt: skip

    def heard_verified(self, verdict: Any) -> None:
        """The scheduler takes note of a CheckpointVerified."""
        self._heard.setdefault(verdict.job_id, set()).add(verdict.bundle)

    def moved(self, event: Any, unit: Unit) -> None:
        job_id, last = event.job_id, self.last.get(event.job_id, "")
        if event.type not in NEXT.get(last, set()):
            self._world.alarm("illegal transition", f"{job_id}: {last or 'nothing'} -> {event.type}")
        self.last[job_id] = event.type
        epoch = self.epochs.get(job_id, 0) + (event.type == "JobScheduled")
        if getattr(event, "attempt", epoch) != epoch:
            self._world.alarm("epoch", f"{event.type} of {job_id} says e{event.attempt}, expected e{epoch}")
        self.epochs[job_id] = epoch

    def was_scheduled(self, event: Any, unit: Unit) -> None:
        self.moved(event, unit)
        name = f"{event.job_id} e{event.attempt}"
        self.scheduled.add((event.job_id, event.attempt))
        first = event.stage.first_attempt if event.stage else 1
        heard = {each for each in self._heard.get(event.job_id, set()) if each.attempt >= first}
        newest = max(heard, key=age_of, default=None)
        if event.resume != newest:
            self._world.alarm("resume point", f"{name} begins from {event.resume}, newest verified: {newest}")
        if event.resume is not None and not self._is_verified(event.job_id, event.resume):
            self._world.alarm("resume point", f"{name} begins from {event.resume}, which nobody verified")

    def stage_completed(self, event: Any, unit: Unit) -> None:
        self.moved(event, unit)
        start = event.stage.start.bundle
        if not self._is_verified(event.job_id, start):
            self._world.alarm("resume point", f"{event.job_id} goes on from {start}, which nobody verified")
        if self._world.checker.training.closed.get((event.job_id, event.attempt)) != "TrainingCompleted":
            self._world.alarm("unfinished artifact", f"{event.job_id} e{event.attempt} ends a stage")

    def is_stopping(self, event: Any, unit: Unit) -> None:
        self.moved(event, unit)
        self.stops[event.job_id, event.attempt] = event

    def is_evaluating(self, event: Any, unit: Unit) -> None:
        self.moved(event, unit)
        self.evaluating[event.job_id] = event
        if not self._is_verified(event.job_id, event.bundle):
            self._world.alarm("unverified artifact", f"{event.job_id} is evaluated on {event.bundle}")
        stored = self._world.storage.find(event.job_id, event.bundle)
        if stored is None or stored.is_corrupt:
            self._world.alarm(
                "lost artifact", f"{event.job_id} is evaluated on {event.bundle}, not whole in S3"
            )
        if self._world.checker.training.closed.get((event.job_id, event.attempt)) != "TrainingCompleted":
            self._world.alarm("unfinished artifact", f"{event.job_id} e{event.attempt} is evaluated")

    def succeeded(self, event: Any, unit: Unit) -> None:
        self.moved(event, unit)
        models = self._world.checker.models
        if event.promoted and event.model_id not in models.promoted:
            self._world.alarm(
                "success", f"{event.job_id}: {event.model_id} is called promoted, nobody did it"
            )
        if event.deployed and not any(name == event.fine_tuned_model for _, name in models.ready):
            self._world.alarm("success", f"{event.job_id}: {event.fine_tuned_model} was never served")

    def _is_verified(self, job_id: str, bundle: BundleRef) -> bool:
        return (job_id, bundle) in self._world.checker.training.verified
