"""What must hold after every step. Each check looks at what was committed, never at how it was decided."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.checks.jobs import JobChecks
from tests.simulation.checks.models import ModelChecks
from tests.simulation.checks.nodes import NodeChecks
from tests.simulation.checks.training import TrainingChecks
from tests.simulation.log import Record
from tests.simulation.tables import MISSING
from tests.simulation.unit import Unit

if TYPE_CHECKING:
    from tests.simulation.kernel import Kernel
    from tests.simulation.world import World


class Checker:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.jobs = JobChecks(world)
        self.training = TrainingChecks(world)
        self.nodes = NodeChecks(world)
        self.models = ModelChecks(world)
        self.hostile: set[str] = set()
        """Event ids of records that shall be parked."""
        self._applied: set[tuple[str, str, str]] = set()
        self._on: dict[str, Callable[[Any, Unit], None]] = {
            **self.jobs.on,
            **self.training.on,
            **self.nodes.on,
            **self.models.on,
        }

    def applies(self, kernel: "Kernel", record: Record) -> None:
        """Its transaction is about to be committed."""
        if kernel.name != "scheduler":
            return
        if record.type == "CheckpointVerified":
            self.jobs.heard_verified(record.message)
        self._changes_no_later_attempt(kernel, record)

    def after(self, kernel: "Kernel", record: Record) -> None:
        name = (kernel.name, record.topic.name, record.id)
        if name in self._applied:
            self._world.alarm("applied twice", f"{kernel.name} {record.type} {record.id}")
        self._applied.add(name)
        if kernel.name == "scheduler" and record.type in ("NodesReleased", "ProvisioningFailed"):
            self.nodes.freed(record.message.job_id, record.message.attempt)
        elif kernel.name == "provisioner" and record.type == "JobScheduled":
            self.nodes.reserved(kernel, record)
        elif kernel.name == "trainer_agent" and record.type == "JobStopping":
            self.training.relays_stop(record.message)

    def emitted(self, unit: Unit) -> None:
        for event in unit.events:
            if check := self._on.get(event.type):
                check(event, unit)

    def parked(self, kernel: "Kernel", record: Record, reason: str, error: Exception | None) -> None:
        if record.id not in self.hostile:
            self._world.alarm("parked", f"{kernel.name} {record.type} {record.key}: {reason}", error)

    def _changes_no_later_attempt(self, kernel: "Kernel", record: Record) -> None:
        """What is said about an earlier attempt changes nothing but the ledger."""
        fact: Any = record.message
        before = kernel.tables.written("job", record.key)
        if before is not MISSING and hasattr(fact, "attempt") and fact.attempt < before.attempt:
            what = f"{record.type} of e{fact.attempt}"
            self._world.alarm("old epoch", f"{what} changed {record.key}, which is at e{before.attempt}")
