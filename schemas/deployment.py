"""deployment.commands and deployment.events: what is loaded where. Facts are keyed by pool, one per base sha."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from schemas.base import Count, Message, Reference, Seconds, Sha256, TenantName, Value, is_none


class LoadCandidate(Message):
    """Lend the candidate of an evaluation a place on one replica of its base model, under a name of its own.

    CandidateReady or CommandRefused answers. Nothing is routed to it. Asked again, it is answered again.
    """

    keyed_by = "eval_id"
    eval_id: Reference
    """Id of the evaluation."""
    model_id: Reference
    """Id of the model version, `mv-…`."""
    digest: Sha256
    base_sha: Sha256
    rank: Annotated[int, Field(ge=0, le=65_536)]
    """LoRA rank; 0 for a full model."""
    until: datetime
    """Time at which it is unloaded, whoever still uses it."""


class UnloadCandidate(Message):
    """Unload the candidate: its evaluation needs it no more. Nothing happens where it is not loaded."""

    keyed_by = "eval_id"
    eval_id: Reference
    """Id of the evaluation."""


class UsedSlot(Value):
    tenant: TenantName
    slot: Reference
    """Name that requests ask for."""


class UseAdapters(Message):
    """Load these slots' adapters before what was used longer ago: requests for them came lately, or wait.

    Nothing answers.
    """

    keyed_by = "reporter"
    reporter: Reference
    """Who reports it: `gateway`."""
    slots: Annotated[tuple[UsedSlot, ...], Field(max_length=500)]
    """The slots that were requested, each at most once."""


class ReplicaAddress(Value):
    """One life of one replica."""

    replica_id: str
    """Id of the replica, which stays when its process is started again."""
    incarnation: str
    """Changes at every start of the process; a lost one never comes back."""
    url: str
    """`http://host:port`, or over TLS `https://host:port#sha256=<digest of its certificate>`: callers take that one
    and no other. The key to it is a file of the stack, never an event."""


class PoolFact(Message):
    keyed_by = "pool"
    pool: str
    """`serve-<first 12 of the base sha>`."""
    base_sha: Sha256


class ReplicaReady(PoolFact):
    """The replica answers for the base model."""

    replica: ReplicaAddress
    base_model: str
    """Name of the base model."""
    served_base: str
    """Model name to send for requests to the base model."""
    engine: str = ""
    """What computes its answers: release, product, precision. Equal ones answer alike; empty: unknown."""
    device: str = ""
    """`cuda`, `cpu`, or empty: unknown."""


class ReplicaLost(PoolFact):
    """The replica gets no more requests: it is gone, or ends once it has answered those that it has."""

    replica: ReplicaAddress
    reason: str
    """Why, as far as it is known, for people."""


class AdapterLoaded(PoolFact):
    """A replica has loaded an adapter."""

    replica: ReplicaAddress
    served_name: str
    """Name of the adapter on the replica, `<name>@<digest>`: immutable."""
    digest: Sha256
    load_seconds: Seconds
    """Until vLLM had it, without the fetch of its files; of a full model since its replica was started."""


class CandidateReady(PoolFact):
    """The candidate is loaded on this replica, read back and probed.

    It stays until UnloadCandidate, its time or the replica ends.
    """

    eval_id: str
    """Id of the evaluation."""
    digest: Sha256
    replica: ReplicaAddress
    served_name: str
    """Model name to send for requests to the candidate; no slot has it."""
    served_base: str
    """Model name to send for requests to the base model."""


class SlotState(PoolFact):
    slot: str
    """Name that the version is served under."""
    tenant: TenantName
    digest: Sha256
    generation: Count
    """Number of the slot's desired state; the highest one counts."""
    model_id: str
    """Id of the model version, `mv-…`."""


class DeploymentStep(StrEnum):
    """Steps in which a slot comes to serve another version, in their order."""

    LOAD = "load"  # its files are fetched and checked, and every replica loads them
    READ_BACK = "read_back"  # every replica lists it
    PROBE = "probe"  # every replica answers with finite numbers, and an adapter not as its base model
    ROUTE = "route"  # requests for the slot go there


class ReplicaSteps(Value):
    """How long the steps took on one replica."""

    replica_id: str
    """Id of the replica."""
    fetch_seconds: Seconds | None = None
    """Until the files were there and checked. None: `load_seconds` has it, as where a replica starts with a model."""
    load_seconds: Seconds
    """As in AdapterLoaded."""
    read_back_seconds: Seconds
    probe_seconds: Seconds


class Swap(Value):
    """How long it took until a slot served another version."""

    replicas: tuple[ReplicaSteps, ...]
    """Replicas that loaded it for this, one after the other; those that had it already are not among them."""
    route_seconds: Seconds
    """From the last step before, which is the approval where every replica had it, until requests are routed."""
    total_seconds: Seconds
    """From the approval until requests are routed. Waiting for a replica, and for what is loaded before, is in it."""


class DeploymentReady(SlotState):
    """The version is loaded on every replica, read back and probed; requests for the slot are routed there."""

    served_name: str
    """Model name to send to the replicas, `<name>@<digest>`."""
    replicas: tuple[ReplicaAddress, ...]
    """Replicas that answer for the slot."""
    swap: Annotated[Swap | None, Field(exclude_if=is_none)] = None
    """How long it took. None where the slot served the version before, on other replicas, and in older events."""


class DeploymentIdle(SlotState):
    """The version is no longer loaded, because others were requested.

    It stays deployed and is loaded for the next request.
    """


class DeploymentFailed(SlotState):
    """The version could not be served; what the slot served before stays."""

    code: str
    """Stable word for machines, for example `stale`, `load`, `probe`."""
    reason: str
    """Why, for people."""
    step: Annotated[DeploymentStep | None, Field(exclude_if=is_none)] = None
    """The step that failed. None where it came to none of them, and in older events."""


class DeploymentStopped(SlotState):
    """Requests for the slot are no longer routed."""


class DeploymentRolledBack(SlotState):
    """An earlier digest serves the slot again, as a new generation."""

    previous_digest: Sha256
