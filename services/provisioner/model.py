"""Pools, and the devices that the nodes of an attempt have of one."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from schemas.base import CapacityType, DeviceKind
from schemas.envelope import Origin
from schemas.layout import attempt_name
from schemas.node import (
    EXIT_COMPLETED,
    EXIT_REPORTED,
    AllocatedNode,
    LeasedDevices,
    LeasedNode,
    LeaseEnd,
    PoolCapacityChanged,
)
from schemas.placement import free_devices, left_by_waiting
from shared.transitions import Transitions

LOCAL = "local"
"""Name of the backend of this machine."""

CLEAN_EXITS = frozenset({EXIT_COMPLETED, EXIT_REPORTED})
"""A runner that exits so has reported why; any other end is a lost node."""


class AttemptState(StrEnum):
    CREATING = "creating"  # reserved in the pool; the backend is being asked
    QUEUED = "queued"  # reserved in the pool; waits in the backend's queue
    RUNNING = "running"  # all nodes exist
    FAILING = "failing"  # cannot be provisioned; what the backend may hold is being removed
    RELEASING = "releasing"  # all nodes are being removed
    REFUSED = "refused"  # ProvisioningFailed was sent; nothing is left at the cluster backend
    RELEASED = "released"  # NodesReleased was sent; nothing is left at the cluster backend


TRANSITIONS = Transitions[AttemptState](
    {
        AttemptState.CREATING: frozenset(
            {AttemptState.QUEUED, AttemptState.RUNNING, AttemptState.FAILING, AttemptState.RELEASING}
        ),
        AttemptState.QUEUED: frozenset({AttemptState.RUNNING, AttemptState.FAILING, AttemptState.RELEASING}),
        AttemptState.RUNNING: frozenset({AttemptState.RELEASING}),
        AttemptState.FAILING: frozenset({AttemptState.REFUSED, AttemptState.RELEASING}),
        # A stop of an attempt that held nothing is answered like any other, after the backend was asked again.
        AttemptState.REFUSED: frozenset({AttemptState.RELEASING}),
        AttemptState.RELEASING: frozenset({AttemptState.RELEASED}),
        AttemptState.RELEASED: frozenset(),
    }
)

GONE = frozenset({AttemptState.REFUSED, AttemptState.RELEASED})


@dataclass(frozen=True)
class Program:
    """What runs on the node of a lease."""

    module: str
    variables: tuple[str, ...]
    """Those of the operator's file for nodes that it gets; no key to Kafka is among them."""


PROGRAMS: Mapping[str, Program] = {
    "scoring": Program("services.evaluator.node", ("RUNNER_EVALUATOR_URL", "RETUNE_CA_FILE")),
    "serving": Program(
        "services.serving_controller.node",
        (
            "RUNNER_SERVING_CONTROLLER_URL",
            "RUNNER_REPLICA_ARGV",
            "RUNNER_REPLICA_READS",
            "RETUNE_CA_FILE",
        ),
    ),
}
"""Programs of nodes by the purpose of their lease: for these a pool may be of another backend than this machine,
where their holder asks for a node."""


class LeaseState(StrEnum):
    QUEUED = "queued"  # waits for devices
    HELD = "held"
    ENDED = "ended"


class LeaseNodeState(StrEnum):
    STARTING = "starting"  # the backend is being asked
    QUEUED = "queued"  # waits in the backend's queue
    RUNNING = "running"
    ENDING = "ending"  # what the backend has of it is being removed


@dataclass(frozen=True)
class LeaseNode:
    """The node of a lease in a pool that is not of this machine. It has the devices of the lease."""

    name: str
    """Name at the cluster backend."""
    state: LeaseNodeState = LeaseNodeState.STARTING
    host: str | None = None
    """Name of the machine, as the backend has it."""
    address: str | None = None
    """Address at which others reach it, as the backend has it."""
    public_key: str | None = None
    notice_deadline: datetime | None = None
    notice_source: str | None = None
    waiting_for: str | None = None
    """Why it waits in the backend's queue, in the backend's words, as announced last."""

    @property
    def leased(self) -> LeasedNode:
        return LeasedNode(
            node_id=node_id(self.name, 0),
            public_key=self.public_key,
            host=self.host,
            address=self.address,
            notice_deadline=self.notice_deadline,
            notice_source=self.notice_source or "",
        )


@dataclass(frozen=True)
class Lease:
    """Devices that a service asked for."""

    lease_id: str
    holder: str
    purpose: str
    pool: str
    num_devices: int
    asked_at: datetime
    until: datetime
    """When it ends unless it is extended."""
    state: LeaseState = LeaseState.QUEUED
    machine: int | None = None
    devices: tuple[int, ...] = ()
    """Numbers of the devices that it has; none before and after."""
    end: LeaseEnd | None = None
    """Why it ended. One that has a node keeps its devices until the node is gone."""
    end_message: str = ""
    """What became of its node."""
    node: LeaseNode | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it is not the holder's any more."""
        return self.end is not None

    @property
    def is_at_work(self) -> bool:
        """Whether its holder may compute on its devices."""
        has_node = self.node is None or self.node.state is LeaseNodeState.RUNNING
        return self.state is LeaseState.HELD and not self.has_ended and has_node


@dataclass(frozen=True)
class Pool:
    name: str
    capacity_type: CapacityType
    nodes: int
    devices_per_node: int
    price_per_device_hour: Decimal
    file_nodes: int | None
    """Nodes by the pools file as last read. An operator's capacity holds until the file says something new. None: as
    many as its cluster has."""
    leased: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Machine -> devices that nodes and leases have on it now."""
    leases: tuple[Lease, ...] = ()
    """Leases that have not ended, in the order in which they were asked for."""
    drained: tuple[int, ...] = ()
    """Machines that take no work and are not among the nodes."""
    device: DeviceKind | None = None
    device_memory_bytes: int | None = None
    """Memory of each device; None where the pools file does not say."""
    accelerator: str | None = None
    first_device: int = 0
    """Number of the first device of machine 0."""
    max_devices_per_job: int | None = None
    tenants: tuple[str, ...] = ()
    is_removed: bool = False
    """Whether it left the pools file."""
    backend: str = LOCAL
    """Kind of the cluster backend that has its nodes."""
    cordon_after_failures: int = 0
    """Failures of a machine after which nothing more starts there; 0: never."""
    cordoned: tuple[str, ...] = ()
    """Names of machines that take no work until an operator says otherwise, and are not among the nodes."""

    @property
    def is_local(self) -> bool:
        """Whether its machines are parts of this one, and have numbers for names."""
        return self.backend == LOCAL

    @property
    def is_counted(self) -> bool:
        """Whether its nodes are those that its cluster has."""
        return self.file_nodes is None

    @property
    def unused(self) -> tuple[int, ...]:
        """Numbers of machines that are not among the nodes. Those of other backends have no number of their own: of
        them there are fewer."""
        cordoned = map(int, self.cordoned) if self.is_local else ()
        return tuple(sorted({*self.drained, *cordoned}))

    @property
    def free(self) -> Mapping[int, int]:
        """Machine -> number of devices free on it, of the machines that take work."""
        held = {machine: len(devices) for machine, devices in self.leased.items()}
        free = free_devices(self, drained=self.unused, held=held)
        return {machine: min(left, len(self.free_on(machine))) for machine, left in free.items()}

    @property
    def free_for_jobs(self) -> Mapping[int, int]:
        """Machine -> number of free devices that no lease waits for."""
        return left_by_waiting(self.free, (lease.num_devices for lease in self.queued_leases))

    @property
    def queued_leases(self) -> tuple[Lease, ...]:
        return tuple(lease for lease in self.leases if lease.state is LeaseState.QUEUED)

    def free_on(self, machine: int) -> list[int]:
        """Return the numbers of its free devices. They continue from machine to machine: the local backend's machines
        are all this one."""
        first = self.first_device + machine * self.devices_per_node
        # Of every machine: those leased before the file changed devices_per_node are numbered otherwise.
        held = frozenset[int]().union(*self.leased.values())
        return [device for device in range(first, first + self.devices_per_node) if device not in held]

    @property
    def capacity(self) -> PoolCapacityChanged:
        free = self.free.values()
        return PoolCapacityChanged(
            pool=self.name,
            capacity_type=self.capacity_type,
            nodes=self.nodes,
            free=sum(devices == self.devices_per_node for devices in free),
            free_devices=sum(free),
            devices_per_node=self.devices_per_node,
            price_per_hour=self.price_per_device_hour * self.devices_per_node,
            drained=self.unused,
            cordoned=self.cordoned,
            device=self.device,
            device_memory_bytes=self.device_memory_bytes,
            accelerator=self.accelerator,
            max_devices_per_job=self.max_devices_per_job,
            tenants=self.tenants,
            is_removed=self.is_removed,
            leases=tuple(
                LeasedDevices(purpose=lease.purpose, devices=lease.num_devices, machine=lease.machine)
                for lease in self.leases
            ),
        )


@dataclass(frozen=True)
class Node:
    """A machine, or the part of one, that an attempt has. It exists only as long as the attempt holds it."""

    node_id: str
    index: int
    price_per_hour: Decimal
    """Price of all its devices."""
    allocated_at: datetime
    machine: int | None = None
    """Number of the pool's machine; None of nodes that were released before machines had one."""
    devices: tuple[int, ...] = ()
    """Numbers of the devices that it has there."""
    released_at: datetime | None = None
    has_ended: bool = False
    """Whether its runner is gone."""
    exit_code: int | None = None
    notice_deadline: datetime | None = None
    host: str | None = None
    """Name of the machine, as the backend has it."""
    public_key: str | None = None
    """Of the key that the backend gave it; None of nodes that have none."""

    @property
    def allocated(self) -> AllocatedNode:
        return AllocatedNode(
            node_id=self.node_id,
            index=self.index,
            price_per_hour=self.price_per_hour,
            machine=self.machine,
            devices=self.devices,
            allocated_at=self.allocated_at,
            released_at=self.released_at,
            host=self.host,
            public_key=self.public_key,
        )


@dataclass(frozen=True)
class Attempt:
    job_id: str
    number: int
    tenant: str
    state: AttemptState
    pool: str = ""
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    devices_per_node: int = 0
    device: DeviceKind | None = None
    """Kind of the pool's devices."""
    grace_seconds: float = 0.0
    start_deadline: datetime | None = None
    stop_deadline: datetime | None = None
    has_started: bool = False
    """TrainingStarted was seen."""
    was_created: bool = False
    """The backend made its nodes."""
    failure_code: str = ""
    failure_message: str = ""
    waiting_for: str = ""
    """Why it waits in the backend's queue, in the backend's words, as announced last."""
    nodes: tuple[Node, ...] = ()
    origin: Origin | None = None
    """Of the message that made it known; what a look makes of it belongs to it. None in rows of an older release."""
    revision: int = 0

    def to(self, state: AttemptState, **changes: Any) -> "Attempt":
        TRANSITIONS.require(self.state, state, what=f"attempt {self.name}")
        return replace(self, state=state, **changes)

    @property
    def name(self) -> str:
        return attempt_name(self.job_id, self.number)

    @property
    def held(self) -> int:
        """Number of nodes of the pool that this attempt holds."""
        return sum(node.released_at is None for node in self.nodes)

    def allocated_at(self, addresses: Sequence[str]) -> tuple[AllocatedNode, ...]:
        """Return the nodes with where they are. `addresses`: of all of them, or none."""
        known: Sequence[str | None] = addresses or [None] * len(self.nodes)
        located = zip(self.nodes, known, strict=True)
        return tuple(node.allocated.model_copy(update={"address": address}) for node, address in located)

    def with_node(self, changed: Node) -> "Attempt":
        nodes = tuple(changed if node.index == changed.index else node for node in self.nodes)
        return replace(self, nodes=nodes)


def node_id(name: str, index: int) -> str:
    return f"{name}-n{index}"


def lease_node_name(lease_id: str) -> str:
    """Return the name of a lease's node at its cluster backend: a DNS label, whatever the lease's id is."""
    return f"r-{hashlib.sha256(lease_id.encode()).hexdigest()[:24]}-e1"
