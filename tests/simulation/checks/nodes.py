"""node.events and the two ledgers: released once and when all is gone, never more than there is."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from schemas.layout import attempt_name
from tests.simulation.log import Record
from tests.simulation.stores import provisioner
from tests.simulation.unit import Unit

if TYPE_CHECKING:
    from tests.simulation.kernel import Kernel
    from tests.simulation.runner import Runner
    from tests.simulation.world import World

Attempt = tuple[str, int]


class NodeChecks:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.released: set[Attempt] = set()
        self.unprovisioned: set[Attempt] = set()
        self.on = {
            "NodesProvisioned": self.provisioned,
            "ProvisioningFailed": self.was_not_provisioned,
            "NodesReleased": self.was_released,
            "DevicesLeased": self.leased,
            "DeviceLeaseEnded": self.lease_ended,
        }
        self._leases: dict[str, tuple[str, int, tuple[int, ...]]] = {}
        """Pool, machine and devices of each lease that has not ended."""

    def provisioned(self, event: Any, unit: Unit) -> None:
        name = (event.job_id, event.attempt)
        if name in self.released or name in self.unprovisioned:
            self._world.alarm("late nodes", f"{name} has nodes after it had none any more")

    def was_released(self, event: Any, unit: Unit) -> None:
        name = (event.job_id, event.attempt)
        if name in self.released:
            self._world.alarm("released twice", f"{name}")
        self.released.add(name)
        self._nothing_is_left(name)

    def was_not_provisioned(self, event: Any, unit: Unit) -> None:
        name = (event.job_id, event.attempt)
        if name in self.released or name in self.unprovisioned:
            self._world.alarm("released twice", f"{name} is called not provisioned after it was released")
        self.unprovisioned.add(name)
        self._nothing_is_left(name)

    def leased(self, event: Any, unit: Unit) -> None:
        place = (event.pool, event.machine, event.devices)
        if self._leases.setdefault(event.lease_id, place) != place:
            self._world.alarm("lease moved", f"{event.lease_id} is at {place} now")
        for lease_id, (pool, _, devices) in self._leases.items():
            if lease_id != event.lease_id and pool == event.pool and {*devices} & {*event.devices}:
                self._world.alarm("capacity", f"{event.lease_id} and {lease_id} have {devices} of {pool}")

    def lease_ended(self, event: Any, unit: Unit) -> None:
        self._leases.pop(event.lease_id, None)

    def reserved(self, kernel: "Kernel", record: Record) -> None:
        """The provisioner took note of a JobScheduled."""
        event: Any = record.message
        name = (event.job_id, event.attempt)
        if kernel.tables.get("holding", name) is None:
            return
        self._no_device_twice(
            kernel.tables.get("pool", event.pool), provisioner.leases_in(kernel.tables, event.pool)
        )
        booked = self._world.kernels["scheduler"].tables.get("booking", name)
        if booked is None:
            self._world.alarm("ledger", f"{name} is reserved, the scheduler has not booked it")
        _, booking, _ = booked
        held = [(machine, len(devices)) for machine, devices in kernel.tables.get("holding", name)[1]]
        if held != [(machine, booking.devices) for machine in booking.machines]:
            self._world.alarm("ledger", f"{name} holds {held}, the scheduler has {booking} booked")

    def _no_device_twice(self, pool: Any, leases: list[tuple[int, tuple[int, ...]]]) -> None:
        devices = Counter(device for _, numbers in leases for device in numbers)
        if twice := [device for device, count in devices.items() if count > 1]:
            self._world.alarm("capacity", f"pool {pool.name} leases devices {twice} more than once")
        machines = {machine for machine, _ in leases} - {*pool.drained}
        if len(machines) > pool.nodes:
            self._world.alarm(
                "capacity", f"pool {pool.name} holds {sorted(machines)} of {pool.nodes} machines"
            )
        if any(
            device // pool.devices_per_node != machine for machine, numbers in leases for device in numbers
        ):
            self._world.alarm("capacity", f"pool {pool.name} leases devices of other machines: {leases}")

    def freed(self, job_id: str, attempt: int) -> None:
        """The scheduler took note that the attempt holds nothing."""
        held = self._world.kernels["provisioner"].tables.get("holding", (job_id, attempt))
        if held is not None:
            self._world.alarm("ledger", f"{job_id} e{attempt} is freed, the provisioner still holds {held}")
        if self._world.kernels["scheduler"].tables.get("booking", (job_id, attempt)) is not None:
            self._world.alarm("ledger", f"{job_id} e{attempt} is released, the scheduler has it booked")

    def ends(self, runner: "Runner") -> None:
        """The engine is told to end a runner: if it lives, it must have heard of the stop, or could not."""
        heard = (runner.job_id, runner.attempt) in self._world.checker.training.stops_relayed
        if heard and runner.alive and self.is_all_said(runner) and runner.stop_request.directive is None:
            self._world.alarm("stop not relayed", f"{runner.name} is ended and was never asked to stop")

    def is_all_said(self, runner: "Runner") -> bool:
        """Nothing is on its way between the runner and the control side."""
        control = self._world.kernels["trainer_agent"]
        unread = [
            each for each in control.consumer.cursors if each.next and each.topic.name == "agent.reports"
        ]
        return runner.has_read_all and not control.outbox.rows and not unread

    def _nothing_is_left(self, name: Attempt) -> None:
        at_engine = attempt_name(*name)
        if self._world.engine.has(at_engine) and at_engine not in self._world.engine.late:
            self._world.alarm("nodes left", f"{name} is called released, the engine still has it")
        for runner in self._world.engine.live_runners():
            if runner.gang is not None and (runner.job_id, runner.attempt) == name:
                self._world.alarm("runner left", f"{runner.name} trains after its nodes are called released")
