"""node.commands and node.events: capacity and the nodes of attempts."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from schemas.base import (
    Attempt,
    Bytes,
    CapacityType,
    Count,
    DeviceKind,
    FailureClass,
    JobId,
    Message,
    Reference,
    Seconds,
    TenantName,
    Usd,
    Value,
)

EXIT_COMPLETED = 0
EXIT_REPORTED = 143
"""Exit code of a runner that did not complete, and reported the reason: the node is not lost."""
EXIT_FENCED = 70
"""Exit code of a runner that ended itself, because Kafka took nothing from it or its grant was withdrawn."""

Notice = Annotated[Seconds, Field(le=24 * 3600)]
"""Time between the notice that a node goes and its end."""


class DrainNode(Message):
    """Give no further work to the machine of a node; all that runs on it ends by notice."""

    keyed_by = "node_id"
    node_id: Reference
    """Id of the node."""
    grace_seconds: Notice = 30.0


class PreemptNode(Message):
    """Take a node back, as a cloud does with spot capacity."""

    keyed_by = "node_id"
    node_id: Reference
    """A node's id, or `job:<job id>` for the first node of the job's present attempt."""
    notice_seconds: Notice = 30.0
    """Time between the notice and the node's end; 0: without notice."""


class SetPoolCapacity(Message):
    """Change the number of nodes of a pool."""

    keyed_by = "pool"
    pool: Reference
    """Name of the node pool."""
    nodes: Annotated[int, Field(ge=0, le=100_000)]
    """Nodes the pool has from now on."""


MachineName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]


class CordonMachine(Message):
    """Start nothing more on a machine; what runs there continues."""

    keyed_by = "pool"
    pool: Reference
    """Name of the node pool."""
    machine: MachineName
    """The host's name that the cluster backend has for it, or its number in a pool of the provisioner's machine."""
    reason: Annotated[str, Field(max_length=500)] = ""
    """Why, for people."""


class UncordonMachine(Message):
    """Let a machine take work again."""

    keyed_by = "pool"
    pool: Reference
    """Name of the node pool."""
    machine: MachineName
    """The host's name that the cluster backend has for it, or its number in a pool of the provisioner's machine."""


PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Purpose = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z][a-z ]*$")]


class LeaseDevices(Message):
    """Lease devices of one machine of a pool to a service, or extend its lease: the same id names the same lease."""

    keyed_by = "lease_id"
    lease_id: Reference
    """Id of the lease, never used for another one."""
    holder: Reference
    """Name of the service that computes on the devices."""
    purpose: Purpose
    """What they are for, in a word or two for people: `scoring`, `serving`."""
    pool: Reference
    """Name of a node pool. Where its machines are another backend's, the lease gets a node of its own there."""
    has_node: bool = False
    """Whether the holder lets that node compute. False: it computes itself, and can use a pool of the provisioner's
    machine alone."""
    devices: Annotated[int, Field(ge=1, le=1024)]
    """Number of devices, all of one machine."""
    until: datetime
    """When the lease or the wait for it ends, unless it is extended; an earlier time than before shortens nothing."""


class ReturnDevices(Message):
    """Give the devices of a lease back, which no process of the holder uses any more, or wait for them no longer."""

    keyed_by = "lease_id"
    lease_id: Reference
    """Id of the lease."""


class AllocatedNode(Value):
    node_id: str
    """Id of the node."""
    index: Count
    """Place in the attempt, from 0."""
    price_per_hour: Usd
    """Price of all devices that the node has."""
    machine: Count | None = None
    """Number of the pool's machine that the node is on. None in older messages."""
    devices: tuple[Count, ...] = ()
    """Numbers of the devices that it has there."""
    allocated_at: datetime
    """When the attempt got the node; it costs from then on."""
    released_at: datetime | None = None
    """When the node was given back; it costs until then. None while it is held."""
    host: str | None = None
    """Name of the machine, as the cluster backend has it. None where that is not known yet."""
    public_key: PublicKey | None = None
    """Ed25519 key that proves what the node reports and measures: what it did not sign counts for nothing. None in
    older messages, and of nodes that were started without a key."""
    address: str | None = None
    """Address at which the other nodes of the attempt reach it, as the cluster backend has it. None in older messages
    and where the backend does not know it, which it does of an attempt of several nodes."""


def key_of_first(nodes: Iterable[AllocatedNode]) -> str | None:
    """Return the key of node 0, which reports the steps of all."""
    return next((node.public_key for node in nodes if node.index == 0), None)


class NodeFact(Message):
    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    attempt: Attempt


class NodesQueued(NodeFact):
    """The attempt waits in the queue of its cluster backend, which costs nothing and has no deadline.

    Sent again when the backend gives another reason, other than in numbers.
    """

    pool: str
    """Name of the node pool."""
    waiting_for: str = ""
    """What it waits for, in the backend's words; of the pods of a gang, two different reasons at most."""


class NodesProvisioned(NodeFact):
    """All nodes of the attempt exist and their runners are starting."""

    pool: str
    """Name of the node pool."""
    capacity_type: CapacityType
    nodes: tuple[AllocatedNode, ...]
    """All nodes of the attempt."""
    start_deadline: datetime | None = None
    """When training must have started, after a wait in the backend's queue. None: as JobScheduled has it."""


class ProvisioningFailed(NodeFact):
    """Nothing of the attempt is left at the cluster backend."""

    pool: str
    """Name of the node pool."""
    code: str
    """Stable word for machines: `no_capacity` costs no budget; anything else is `infra`."""
    message: str
    """What happened, for people."""


class NodePreempted(NodeFact):
    """A node goes away at the deadline."""

    node_id: str
    """Id of the node."""
    deadline: datetime
    """When the node goes away."""
    source: str
    """Who reported it: `operator`, `drain`, or what the cluster backend calls its reason."""


class NodeLost(NodeFact):
    """A node went away without notice."""

    node_id: str
    """Id of the node."""
    message: str
    """What happened, for people."""
    failure_class: FailureClass | None = None
    """`platform` where its runner ended itself because Kafka took nothing from it. None: `infra`."""
    host: str | None = None
    """Name of the machine, as the cluster backend has it. None where that was never known."""


class NodesReleased(NodeFact):
    """The last node of the attempt is gone. Exactly once per attempt that was stopped or ended."""

    nodes: tuple[AllocatedNode, ...]
    """Nodes that the attempt held; empty where it never had one."""


class LeaseFact(Message):
    keyed_by = "lease_id"
    lease_id: str
    """Id of the lease."""
    holder: str
    """Name of the service that asked for the devices."""
    purpose: str
    """What they are for, in a word or two for people."""
    pool: str
    """Name of the node pool."""


class LeasedNode(Value):
    """The node that a lease has at another backend than the provisioner's machine."""

    node_id: str
    """Id of the node."""
    public_key: PublicKey | None = None
    """Ed25519 key that proves what the node asks for. None of nodes that were started without a key."""
    host: str | None = None
    """Name of the machine, as the cluster backend has it. None where that is not known yet."""
    address: str | None = None
    """Address at which others reach it, as the cluster backend has it. None where that is not known (yet)."""
    notice_deadline: datetime | None = None
    """When the cluster backend ends the node. None: it has given no notice."""
    notice_source: str = ""
    """What the cluster backend calls the reason of its notice."""


class DevicesLeased(LeaseFact):
    """A service has devices. Again whenever the lease is extended, or there is notice that its node goes away."""

    machine: Count
    """Number of the pool's machine."""
    devices: tuple[Count, ...]
    """Numbers of the devices there."""
    device: DeviceKind | None = None
    """Kind of device; None where the operator does not say."""
    until: datetime
    """When the lease ends unless it is extended: no process of the holder uses the devices after that."""
    node: LeasedNode | None = None
    """Where they are; None: on the provisioner's machine."""


class DeviceLeaseQueued(LeaseFact):
    """A service waits for devices, which it gets before jobs that are scheduled later, or for the cluster backend, in
    whose queue its node is."""

    devices: Count
    """Number of devices that it waits for."""
    waiting_for: str
    """What it waits for, for people."""


class LeaseEnd(StrEnum):
    RETURNED = "returned"  # the holder gave the devices back, or waits no more
    EXPIRED = "expired"  # the holder did not extend it
    POOL_REMOVED = "pool_removed"  # the operator's file has the pool no more
    NODE_ENDED = "node_ended"  # the cluster backend started no node for it, or ended it


class DeviceLeaseEnded(LeaseFact):
    """The devices are not the holder's any more, or it waits for them no longer."""

    reason: LeaseEnd
    """Why it ended."""
    message: str = ""
    """What became of its node, for people; empty where it ended for another reason."""


class LeasedDevices(Value):
    """Devices of a pool that a service has leased, or waits for."""

    purpose: str
    """What they are for, in a word or two for people."""
    devices: Count
    """Number of devices."""
    machine: Count | None = None
    """Number of the machine that they are on; None: the lease waits for them."""


class FailureKind(StrEnum):
    NODE_LOST = "node_lost"  # the node went away without notice
    TRAINING_FAILED = "training_failed"  # training failed there, for a reason of its machine


class MachineFailure(Value):
    """A node that failed for a reason of its machine."""

    machine: str
    """The host's name that the cluster backend has for it, or its number in a pool of the provisioner's machine."""
    kind: FailureKind | None = None
    """None where it was recorded before kinds were."""
    job_id: JobId
    attempt: Attempt
    node_id: str
    """Id of the node."""
    devices: tuple[Count, ...] = ()
    """Numbers of the devices that the node had there."""
    failed_at: datetime
    """When it was recorded."""
    counts_until: datetime | None = None
    """Until when it counts for a cordon; None: it counts no more since its machine was uncordoned."""
    message: Annotated[str, Field(max_length=500)]
    """What happened, for people; what is longer is cut off."""

    @property
    def subject(self) -> str:
        """What counts as one job."""
        return self.job_id


class LeaseFailure(Value):
    """The node of a service's lease that failed for a reason of its machine."""

    machine: str
    """The host's name that the cluster backend has for it."""
    lease_id: str
    """Id of the lease."""
    holder: str
    """Name of the service that had the lease."""
    purpose: str
    """What it was for, in a word or two for people."""
    node_id: str
    """Id of the node."""
    devices: tuple[Count, ...] = ()
    """Numbers of the devices that the lease had in the pool."""
    failed_at: datetime
    """When it was recorded."""
    counts_until: datetime | None = None
    """Until when it counts for a cordon; None: it counts no more since its machine was uncordoned."""
    has_lost_machine: bool
    """Whether the cluster backend lost the machine; False: the node ended there, and its program may be at fault."""
    message: Annotated[str, Field(max_length=500)]
    """What happened, for people; what is longer is cut off."""

    @property
    def subject(self) -> str:
        """What counts as one job: a lost machine is no program's fault, and a program that ends everywhere is one."""
        return self.lease_id if self.has_lost_machine else self.holder


class PoolCapacityChanged(Message):
    """A pool has other nodes or devices than before, all, free or leased, or a machine of it has failed."""

    keyed_by = "pool"
    pool: str
    """Name of the node pool."""
    capacity_type: CapacityType
    nodes: Count
    """Nodes the pool has in all."""
    free: Count
    """Nodes of which neither an attempt nor a lease holds a device."""
    devices_per_node: Count
    """Devices of each node, one for a training process."""
    price_per_hour: Usd
    """Price of a node with all its devices; a device costs its part of it."""
    device: DeviceKind | None = None
    """Kind of device that its nodes have; None where the operator does not say."""
    device_memory_bytes: Bytes | None = None
    """Memory of each device; None where the operator does not say."""
    accelerator: str | None = None
    """Kind of accelerator, by the operator's word; None in older messages."""
    free_devices: Count | None = None
    """Devices that neither attempts nor leases hold; None in older messages."""
    drained: tuple[Count, ...] = ()
    """Numbers of machines that take no work and are not among `nodes`: the others are numbered from 0 around them."""
    cordoned: tuple[str, ...] = ()
    """Names of machines that take no work until an operator says otherwise; they are not among `nodes`."""
    max_devices_per_job: Count | None = None
    """Most devices that a job may take of the pool; None: all."""
    tenants: tuple[TenantName, ...] = ()
    """Tenants whose jobs it takes; none: every tenant's."""
    is_removed: bool = False
    """Whether the operator's file has it no more, so that it gives no nodes and no job waits for its kind."""
    leases: tuple[LeasedDevices, ...] = ()
    """What services lease of it, each lease by itself, those that wait in the order in which they are served."""
    failures: Annotated[tuple[MachineFailure, ...], Field(max_length=50)] = ()
    """The newest failures of its machines under attempts, the newest first; none in older messages."""
    lease_failures: Annotated[tuple[LeaseFailure, ...], Field(max_length=50)] = ()
    """The newest failures of its machines under leases, the newest first; none in older messages."""
    cordon_after_failures: Count | None = None
    """Failures that count after which a machine is cordoned; 0: never. None in older messages."""
    cordon_after_jobs: Count | None = None
    """Of how many jobs these must be, or leases whose machine was lost. None in older messages."""

    @property
    def name(self) -> str:
        return self.pool


class MachineCordoned(Message):
    """Nothing more starts on a machine."""

    keyed_by = "pool"
    pool: str
    """Name of the node pool."""
    machine: str
    """The host's name that the cluster backend has for it, or its number in a pool of the provisioner's machine."""
    source: str
    """Who decided it: `operator`, or `failures` of the machine."""
    reason: str
    """Why, for people."""


class MachineUncordoned(Message):
    """A machine takes work again."""

    keyed_by = "pool"
    pool: str
    """Name of the node pool."""
    machine: str
    """The host's name that the cluster backend has for it, or its number in a pool of the provisioner's machine."""
