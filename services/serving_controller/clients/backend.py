"""The interface to whatever runs replicas: one Protocol, one file per engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shared.device import Device


@dataclass(frozen=True)
class ReplicaSpec:
    replica_id: str
    incarnation: str
    model_dir: Path
    served_name: str
    max_lora_rank: int
    """Highest rank of an adapter; 0: no adapters are loaded."""
    adapter_layers: tuple[str, ...] = ()
    """The layers that adapters are on, by the last parts of their names; empty: all that vLLM knows."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Variables that leave it its own devices alone."""
    lease_seconds: float | None = None
    """Time after which it ends itself unless its lease is extended; None: it has devices without a lease."""


@dataclass(frozen=True)
class EngineFacts:
    """What computes a replica's answers."""

    name: str
    """Release, product and precision: equal ones answer alike."""
    device: Device


@dataclass(frozen=True)
class ReplicaStatus:
    """A replica that was started and not ended."""

    replica_id: str
    incarnation: str
    url: str
    is_alive: bool


class BackendFailed(RuntimeError):
    """The engine did not do what was asked; the sentence says what."""


class ReplicaBackend(Protocol):
    """Starts detached replicas, which outlive the controller, and finds them again. Its verbs are those of the
    provisioner's backend.
    """

    @property
    def engine(self) -> EngineFacts: ...

    async def start(self, spec: ReplicaSpec) -> None:
        """Start one. What may be left of an earlier start of it is ended first."""

    async def extend(self, replica_id: str, seconds: float) -> None:
        """Let the lease of the replica's devices last for so long from now on; after that it ends itself."""

    async def inspect(self, replica_id: str) -> ReplicaStatus | None:
        """Return what the backend has of the replica. None: it was not started, or was ended."""

    async def list_owned(self) -> list[str]:
        """Return the ids of all that were started and not ended."""

    async def end(self, replica_id: str) -> None:
        """Kill it with all its processes; returns when none is left. Raises BackendFailed."""

    def key(self, replica_id: str) -> str:
        """The key of those who ask its models."""

    def management_key(self, replica_id: str) -> str:
        """The key that also loads and unloads adapters: of the controller alone."""

    def folder(self, replica_id: str) -> Path:
        """Absolute; files in it can be read by the replica, and are gone at its next start."""

    def log_tail(self, replica_id: str) -> str:
        """The end of its log, in one line."""
