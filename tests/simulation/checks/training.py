"""training.events and checkpoint.events: one end, one writer, no old epoch; verdicts that are true."""

from typing import TYPE_CHECKING, Any

from schemas.base import BundleRef
from tests.simulation.unit import Unit

if TYPE_CHECKING:
    from tests.simulation.world import World

CLOSING = ("TrainingStopped", "TrainingCompleted")

Attempt = tuple[str, int]


class TrainingChecks:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.closed: dict[Attempt, str] = {}
        """The last fact of each attempt that has one."""
        self.verified: set[tuple[str, BundleRef]] = set()
        self.stops_relayed: dict[Attempt, float] = {}
        """When the control side has applied a JobStopping last."""
        self._written: set[tuple[str, BundleRef]] = set()
        self._makers: dict[Attempt, str] = {}
        self._newest: dict[str, int] = {}
        self._children: set[tuple[str, int, int]] = set()
        self.on = dict.fromkeys(("TrainingStarted", "TrainingFailed", "TrainingStopped"), self.reported) | {
            "TrainingCompleted": self.completed,
            "CheckpointWritten": self.written,
            "CheckpointVerified": self.was_verified,
        }

    def reported(self, event: Any, unit: Unit) -> None:
        name = (event.job_id, event.attempt)
        if name in self.closed:
            self._world.alarm("closed attempt", f"{event.type} after {self.closed[name]} of {name}")
        newest = self._newest.get(event.job_id, 0)
        if event.attempt < newest and is_claimed(unit):
            self._world.alarm("old epoch", f"{event.type} of {name} after facts of e{newest}")
        self._newest[event.job_id] = max(newest, event.attempt)
        if event.type in CLOSING:
            self.closed[name] = event.type

    def completed(self, event: Any, unit: Unit) -> None:
        self.reported(event, unit)
        self._made_by_one(event, unit)

    def written(self, event: Any, unit: Unit) -> None:
        self.reported(event, unit)
        self._made_by_one(event, unit)
        if (event.job_id, event.bundle) in self._written:
            self._world.alarm("written twice", f"{event.job_id} {event.bundle}")
        self._written.add((event.job_id, event.bundle))

    def was_verified(self, event: Any, unit: Unit) -> None:
        stored = self._world.storage.find(event.job_id, event.bundle)
        if stored is None or stored.is_corrupt:
            self._world.alarm("false verdict", f"{event.job_id} {event.bundle} is called verified")
        self.verified.add((event.job_id, event.bundle))

    def relays_stop(self, event: Any) -> None:
        if (event.job_id, event.attempt) not in self.closed:
            self.stops_relayed[event.job_id, event.attempt] = self._world.clock.now

    def child_started(self, job_id: str, attempt: int, index: int) -> None:
        if (job_id, attempt, index) in self._children:
            self._world.alarm("two children", f"node {index} of {job_id} e{attempt} started a second one")
        self._children.add((job_id, attempt, index))
        for runner in self._world.engine.live_runners():
            if runner.gang is not None and runner.job_id == job_id and runner.attempt < attempt:
                detail = f"{runner.name} trains while e{attempt} begins"
                self._world.alarm("two attempts train", detail)

    def resume_missing(self, job_id: str, attempt: int, bundle: BundleRef) -> None:
        """A runner could not fetch what it was told to begin from.

        It may be gone where the scheduler had waited its ten minutes for verdicts and then began from an older
        bundle: retention, which had verified newer ones, does not know that yet.
        """
        newer = [ref for job, ref in self.verified if job == job_id and age_of(bundle) < age_of(ref)]
        knew_all = all(ref.attempt >= attempt for ref in newer)
        is_open = (job_id, attempt) not in self.closed
        if knew_all and is_open and self._world.checker.jobs.epochs.get(job_id) == attempt:
            self._world.alarm("resume point", f"{job_id} e{attempt}: {bundle} is not whole in S3")

    def _made_by_one(self, event: Any, unit: Unit) -> None:
        """Accepted claims about an attempt's training come from one process."""
        if not is_claimed(unit):
            return
        assert unit.envelope is not None, "claims are messages"
        maker, name = unit.envelope.id.rpartition("-")[0], (event.job_id, event.attempt)
        if self._makers.setdefault(name, maker) != maker:
            self._world.alarm("two writers", f"facts of {name} by {self._makers[name]} and {maker}")


def age_of(bundle: BundleRef) -> tuple[int, int]:
    return bundle.attempt, bundle.step


def is_claimed(unit: Unit) -> bool:
    """Whether a runner said it; the control side closes attempts by itself as well."""
    return unit.envelope is not None and unit.envelope.topic.name == "agent.reports"
