"""deployment.events: what is loaded where. Key: the serving pool, one per base sha."""

from schemas.base import Count, Message, Seconds, Sha256, TenantName, Value


class ReplicaAddress(Value):
    replica_id: str
    incarnation: str
    """Changes at every start of the process; a lost one never comes back."""
    url: str
    """`http://host:port`; the key to it is a file of the stack, never an event."""


class PoolFact(Message):
    keyed_by = "pool"
    pool: str
    """`serve-<first 12 of the base sha>`."""
    base_sha: Sha256


class ReplicaReady(PoolFact):
    """The replica answers for the base model."""

    replica: ReplicaAddress
    base_model: str
    served_base: str
    """Model name to send for requests to the base model."""


class ReplicaLost(PoolFact):
    replica: ReplicaAddress
    reason: str


class AdapterLoaded(PoolFact):
    replica: ReplicaAddress
    served_name: str
    """`<name>@<digest>`: immutable."""
    digest: Sha256
    load_seconds: Seconds


class SlotState(PoolFact):
    slot: str
    tenant: TenantName
    digest: Sha256
    generation: Count
    model_id: str


class DeploymentReady(SlotState):
    """Loaded on every replica, read back and probed; requests for the slot are routed there."""

    served_name: str
    replicas: tuple[ReplicaAddress, ...]


class DeploymentFailed(SlotState):
    code: str
    """For example `stale`, `load`, `probe`."""
    reason: str


class DeploymentStopped(SlotState):
    """Not routed any more."""


class DeploymentRolledBack(SlotState):
    """An earlier digest serves the slot again, as a new generation."""

    previous_digest: Sha256
