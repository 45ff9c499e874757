"""node.commands and node.events: capacity and the nodes of attempts."""

from datetime import datetime

from schemas.base import Attempt, Count, JobId, Message, PriceClass, Seconds, TenantName, Usd, Value


class DrainNode(Message):
    """Give no further work to a node; what runs on it ends by notice."""

    keyed_by = "node_id"
    node_id: str
    grace_seconds: Seconds = 30.0


class PreemptNode(Message):
    """Take a node back, as a cloud does with spot capacity."""

    keyed_by = "node_id"
    node_id: str
    """A node's id, or `job:<job id>` for the first node of the job's present attempt."""
    notice_seconds: Seconds = 30.0
    """0: without notice."""


class SetPoolCapacity(Message):
    keyed_by = "pool"
    pool: str
    nodes: Count


class AllocatedNode(Value):
    node_id: str
    index: Count
    price_per_hour: Usd
    allocated_at: datetime
    released_at: datetime | None = None


class NodeFact(Message):
    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    attempt: Attempt


class NodesProvisioned(NodeFact):
    """All nodes of the attempt exist and their runners are starting."""

    pool: str
    price_class: PriceClass
    nodes: tuple[AllocatedNode, ...]


class ProvisioningFailed(NodeFact):
    """Nothing of the attempt is left at the engine."""

    pool: str
    code: str
    """`no_capacity` costs no budget; anything else is `infra`."""
    message: str


class NodePreempted(NodeFact):
    """A node goes away at the deadline."""

    node_id: str
    deadline: datetime
    source: str
    """Who said so: `operator`, `drain`, or the engine."""


class NodeLost(NodeFact):
    """A node went away without notice."""

    node_id: str
    message: str


class NodesReleased(NodeFact):
    """The last node of the attempt is gone. Exactly once per attempt that was stopped or ended."""

    nodes: tuple[AllocatedNode, ...]


class PoolCapacityChanged(Message):
    keyed_by = "pool"
    pool: str
    price_class: PriceClass
    nodes: Count
    """Nodes the pool has in all."""
    free: Count
    devices_per_node: Count
    price_per_hour: Usd
