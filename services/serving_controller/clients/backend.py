"""The interface to whatever runs replicas: one Protocol, one file per engine."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from services.serving_controller.model import Servable
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
    key_digests: Mapping[str, str] | None = None
    """Digests of its keys, by their variables (guard.py); None: it gets new keys, which are kept on this machine."""
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
    """Where it listens; empty: not known yet."""
    is_alive: bool


class BackendFailed(RuntimeError):
    """The engine did not do what was asked; the sentence says what."""


class ReplicaBackend(Protocol):
    """Starts detached replicas, which outlive the controller, and finds them again. Its verbs are those of the
    provisioner's backend.
    """

    @property
    def has_nodes(self) -> bool:
        """Whether replicas run on nodes of their leases, and not on this machine."""

    async def engine(self, replica_id: str) -> EngineFacts | None:
        """Return what computes, or will compute, the replica's answers; None: that is not known yet."""

    async def start(self, spec: ReplicaSpec) -> None:
        """Start one. What may be left of an earlier start of it is ended first."""

    async def extend(self, replica_id: str, seconds: float) -> None:
        """Let the lease of the replica's devices last for so long from now on; after that it ends itself."""

    async def inspect(self, replica_id: str) -> ReplicaStatus | None:
        """Return what the backend has of the replica. None: it was not started, or was ended."""

    async def list_owned(self) -> list[str]:
        """Return the ids of all that were started and not ended."""

    async def end(self, replica_id: str) -> None:
        """Kill it with all its processes; returns when none is left, or its node cannot be asked. Raises
        BackendFailed."""

    def key(self, replica_id: str) -> str:
        """The key of those who ask its models."""

    def management_key(self, replica_id: str) -> str:
        """The key that also loads and unloads adapters: of the controller alone."""

    async def log_tail(self, replica_id: str) -> str:
        """The end of its log, in one line."""


class ReplicaFiles(Protocol):
    """Files of models where replicas run, checked before any loader sees them. Paths are absolute, and the replica's.

    Methods that return a path return None while the files are on their way. They raise BadModel, CorruptObject,
    StorageUnavailable and KeyError.
    """

    async def model(self, replica_id: str, base_sha: str, full: Servable | None) -> Path | None:
        """Return the folder of the full model, or of the base model where there is none."""

    async def adapter(self, replica_id: str, servable: Servable) -> Path | None:
        """Return a folder with the adapter's two files, gone at the replica's next start."""

    async def remove_adapter(self, replica_id: str, served_name: str) -> None: ...

    async def keep_only(self, *, bases: Container[str], models: Container[str]) -> None:
        """Keep the files of these base models and full models (by digest), and delete those of all others."""
