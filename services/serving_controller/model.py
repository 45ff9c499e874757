"""Words of the serving controller: what slots are meant to serve, and what is loaded where."""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal, Self

from schemas.deployment import DeploymentStep
from schemas.envelope import Origin
from services.serving_controller.protocol import FolderState, ModelFolder, NodeReport, ReplicaStart
from shared.device_leases.lease import HeldLease

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM takes for --max-lora-rank."""


def pool_of(base_sha: str) -> str:
    return f"serve-{base_sha[:12]}"


def allowed_rank(rank: int) -> int:
    """The smallest rank that a replica can be started with and that holds an adapter of this one."""
    return next((allowed for allowed in LORA_RANKS if allowed >= rank), LORA_RANKS[-1])


@dataclass(frozen=True)
class Servable:
    """A model version as it is served: immutable, so that no cache can mix two of them up."""

    model_id: str
    full_name: str
    kind: Literal["adapter", "full"]
    digest: str
    base_model: str
    base_sha: str
    rank: int

    @property
    def served_name(self) -> str:
        return f"{self.full_name}@{self.digest}"

    @property
    def pool(self) -> str:
        """The serving pool whose events report it."""
        return pool_of(self.base_sha)

    @property
    def replica_set(self) -> str:
        """The replicas that serve it: those of the base model, or its own."""
        if self.kind == "adapter":
            return self.pool
        return f"full-{hashlib.sha256(self.served_name.encode()).hexdigest()[:12]}"


CANDIDATE = "gate-"
_CANDIDATE_NAME = re.compile(r"gate-.+@[0-9a-f]{64}")


def is_candidate(served_name: str) -> bool:
    """Whether it is a name that this controller lends to candidates. Slots have names of model versions."""
    return _CANDIDATE_NAME.fullmatch(served_name) is not None


@dataclass(frozen=True, order=True)
class Address:
    """One start of one replica."""

    replica_id: str
    incarnation: str
    url: str


@dataclass(frozen=True)
class Approval:
    generation: int
    at: datetime


class SlotState(StrEnum):
    PENDING = "pending"  # approved, not served yet; what was served before still is
    READY = "ready"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class Route:
    """The version and the addresses to which requests for a slot go now."""

    servable: Servable
    generation: int
    addresses: frozenset[Address]


@dataclass(frozen=True)
class Slot:
    """What a slot is meant to serve, by its highest generation, and what it serves."""

    tenant: str
    name: str
    generation: int = 0
    state: SlotState = SlotState.WITHDRAWN
    desired: Servable | None = None
    route: Route | None = None
    served: frozenset[str] = frozenset()
    """Every digest that this slot was ever routed to."""
    origin: Origin | None = None
    """Of the request that approved its generation, or withdrew it; what rounds do belongs to it. None in rows of an
    older release."""
    approval: Approval | None = None
    """Newest approval that this release or a later one heard."""
    revision: int = 0

    @property
    def approved_at(self) -> datetime | None:
        """When its generation was approved; None where that is not known, or it was withdrawn."""
        is_known = self.approval is not None and self.approval.generation == self.generation
        return self.approval.at if self.approval is not None and is_known else None

    @property
    def is_wanted(self) -> bool:
        return self.state in (SlotState.PENDING, SlotState.READY)

    @property
    def pending(self) -> Servable | None:
        """What it waits for."""
        return self.desired if self.state is SlotState.PENDING else None

    def is_pending_on(self, bases: Collection[tuple[str, str]]) -> bool:
        """Return whether what it waits for was trained on one of these, each a name with the sha of its files."""
        return self.pending is not None and (self.pending.base_model, self.pending.base_sha) in bases

    @property
    def desired_servables(self) -> Mapping[str, "DesiredServable"]:
        """What requests reach and what they shall reach, by served name."""
        servables = {}
        if self.route is not None:
            servables[self.route.servable.served_name] = DesiredServable(
                self.route.servable, is_pending=False
            )
        if self.desired is not None and self.is_wanted:
            is_pending = self.state is SlotState.PENDING
            servables[self.desired.served_name] = DesiredServable(self.desired, is_pending=is_pending)
        return servables


@dataclass(frozen=True)
class DesiredServable:
    servable: Servable
    is_pending: bool
    """Not asked to be served yet."""


@dataclass(frozen=True)
class ReplicaSetServables:
    """What a replica set shall serve, in the order to load it: what somebody waits for, then what was used last."""

    servables: Mapping[str, Servable]
    pending: frozenset[str]
    max_rank: int = 0
    """Highest rank of all that it shall serve, whether or not it is resident."""

    @classmethod
    def of(cls, desired_servables: Sequence[DesiredServable]) -> Self:
        servables = {each.servable.served_name: each.servable for each in desired_servables}
        pending = frozenset(each.servable.served_name for each in desired_servables if each.is_pending)
        return cls(servables, pending, max(servable.rank for servable in servables.values()))


@dataclass(frozen=True)
class Retired:
    """A version that is not routed any more; it stays loaded a while for requests under way and a quick way back."""

    servable: Servable
    keep_until: datetime


@dataclass(frozen=True)
class Candidate:
    """A version under evaluation: a place on one replica, nothing that is routed."""

    eval_id: str
    servable: Servable
    until: datetime
    """Time at which it is unloaded, whoever forgot it."""
    command_id: str
    """Id of the newest command that asked for it, which is to be answered."""
    host: Address | None = None
    """Replica where it was announced; None until the command is answered."""


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"  # announced
    LEAVING = "leaving"  # gets no more requests; it ends when it has answered those that it has
    LOST = "lost"  # dead; no start of it is under way


@dataclass(frozen=True)
class Replica:
    """One vLLM process as it was last seen."""

    replica_id: str
    replica_set: str
    base_sha: str
    phase: Phase
    address: Address
    started_at: datetime
    max_rank: int = 0
    served_base: str = ""
    """Name to send for requests to the base model; for a full model its own served name."""
    announced: frozenset[str] = frozenset()
    """Base model names for which ReplicaReady was sent."""
    loaded: frozenset[str] = frozenset()
    """Served names that are loaded, read back and probed."""
    strays: frozenset[str] = frozenset()
    """Candidates that the process lists and nobody wrote down: their load was cut short. Not stored."""
    is_alive: bool = True
    answers: bool = True
    failures: int = 0
    """Starts in a row that did not last."""
    not_before: datetime | None = None
    """Of a lost one: when it may be started again. Of a leaving one: when it ends whatever it has to answer."""
    reason: str = ""
    """Why it was lost, or leaves."""
    is_busy: bool = True
    """Whether a leaving one has requests to answer, as far as is known. Not stored."""

    def leaving(self, reason: str, *, until: datetime) -> Self:
        return replace(self, phase=Phase.LEAVING, announced=frozenset(), not_before=until, reason=reason)

    def lost(self, reason: str, *, failures: int, not_before: datetime) -> Self:
        return replace(
            self,
            phase=Phase.LOST,
            is_alive=False,
            announced=frozenset(),
            loaded=frozenset(),
            failures=failures,
            not_before=not_before,
            reason=reason,
        )


@dataclass(frozen=True)
class LoadTimes:
    """How long the steps took, in seconds, that made one start of one replica serve a version."""

    served_name: str
    replica_id: str
    incarnation: str
    fetch_seconds: float | None
    """None: `load_seconds` has it."""
    load_seconds: float
    read_back_seconds: float
    probe_seconds: float
    loaded_at: datetime
    """When the last step ended."""


@dataclass(frozen=True)
class Requests:
    """What a replica has to answer."""

    running: int
    waiting: int

    @property
    def total(self) -> int:
        return self.running + self.waiting


@dataclass(frozen=True)
class ReplicaSet:
    """Replicas that are alike: those of a base model, or those of one full model."""

    name: str
    base_sha: str
    full: Servable | None = None
    base_names: tuple[str, ...] = ()
    """Registered names of the base model; the first is what the replica calls it."""
    adapters: Mapping[str, Servable] = field(default_factory=dict)
    """What shall be loaded, by served name, in this order."""
    pending: frozenset[str] = frozenset()
    """Served names that somebody waits for."""
    leaving: frozenset[str] = frozenset()
    """Served names of adapters that are not routed any more: they stay loaded a while."""
    desired_rank: int = 0
    """Highest rank of all its adapters, resident or not: one that is not resident must not need another start."""
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    """What is lent a place, by served name."""
    adapter_layers: tuple[str, ...] | None = None
    """Last parts of the names of the layers that adapters are on; None: all that vLLM knows, empty: no adapters."""
    num_replicas: int = 0
    leases: Mapping[str, HeldLease] | None = None
    """Leases of devices, by replica; None where replicas need none."""

    @property
    def pool(self) -> str:
        return pool_of(self.base_sha)

    @property
    def max_rank(self) -> int:
        ranks = (self.desired_rank, *(adapter.rank for adapter in self.adapters.values()))
        return max((allowed_rank(rank) for rank in ranks if rank), default=0)


@dataclass(frozen=True)
class NodeRecord:
    """The node of a replica: what shall be there, and what it has reported."""

    replica_id: str
    lease_id: str
    folders: tuple[ModelFolder, ...]
    start: ReplicaStart | None
    report: NodeReport

    @property
    def is_alive(self) -> bool:
        """Whether the replica that shall run there has not ended, as far as the node has reported."""
        started = self.start is not None and self.report.incarnation == self.start.incarnation
        return self.report.is_alive if started else self.start is not None

    def state_of(self, folder: ModelFolder) -> FolderState:
        none = FolderState(folder_id=folder.folder_id)
        return next((each for each in self.report.folders if each.folder_id == folder.folder_id), none)


@dataclass(frozen=True)
class Failure:
    """Why something cannot be served."""

    code: Literal["load", "probe", "replica", "stale", "rank", "full"]
    reason: str
    step: DeploymentStep | None = None
    """The step that failed; None where it came to none."""
    is_final: bool = False
    """Whether it is not tried again."""
