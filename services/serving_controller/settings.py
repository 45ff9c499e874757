"""Typed environment of the serving controller."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from pydantic_settings import SettingsConfigDict

from services.serving_controller.clients.local import LOOPBACK, Engine
from services.serving_controller.decide.pools import Policy
from shared.device_leases.holder import DeviceLeases
from shared.settings import NodeServiceSettings
from shared.tls import CA_FILE, CERT_FILE


class Settings(NodeServiceSettings):
    model_config = SettingsConfigDict(env_prefix="SERVING_CONTROLLER_", frozen=True)

    scratch_dir: Path
    """Base models and full models, fetched once."""
    replicas_dir: Path
    """A folder for each replica: who it is, its log, what it loaded."""
    keys_dir: Path
    """One file per replica with the key to its API, for the gateway."""

    pool: Annotated[str, Field(min_length=1)] | None = None
    """Pool of which each replica leases its devices; None: replicas take what this machine has."""
    on_nodes: bool = False
    """Run each replica on a node of `pool`, which is of another backend than the provisioner's machine. Else they are
    processes of this machine, and so must the devices of `pool` be."""
    devices_per_replica: PositiveInt = 1
    """Devices over which vLLM shares a replica's model (its `--tensor-parallel-size`)."""
    lease_term: Annotated[timedelta, Field(ge=timedelta(seconds=10))] = timedelta(hours=1)
    """How long a replica outlives the last lease of its devices that was confirmed; it is extended five times
    within it."""

    replica_host: str = LOOPBACK
    """Address of this machine at which replicas listen and are asked. Another one than the default lets gateways and
    evaluators of other machines ask them, who need the files of `keys_dir` too."""
    replicas_per_pool: PositiveInt = 1
    """Replicas of a base model, and of a model all of whose weights were trained."""
    max_replicas_per_pool: PositiveInt | None = None
    """Most replicas, to which one after the other is added while requests wait; None: no more than
    `replicas_per_pool`, ever."""
    scale_up_seconds: PositiveFloat = 15.0
    """How long requests wait before a replica is added."""
    scale_down_seconds: PositiveFloat = 300.0
    """How long the others could answer all before a replica leaves."""
    drain_seconds: PositiveFloat = 600.0
    """Longest time that a replica which leaves has for the requests that it has."""
    serve_base_models: bool = True
    """Start a base model's replicas at its registration; else at the first approval of an adapter."""
    max_lora_rank: Annotated[int, Field(ge=1, le=512)] = 32
    """Rank that replicas start with; they are restarted when an adapter needs more."""
    keep_seconds: float = 60.0
    """How long what is not routed any more stays loaded."""
    start_within_seconds: float = 600.0
    unanswered_seconds: float = 60.0
    """Silence of a ready replica after which it is lost."""
    look_every_seconds: float = 0.5

    dtype: str = "float32"
    """vLLM's `--dtype`; set it to `auto` on a GPU."""
    enforce_eager: bool = True
    """vLLM's `--enforce-eager`; set it to False on a GPU."""
    one_process: bool = True
    max_loras: PositiveInt = 8
    """Adapters in one batch."""
    max_cpu_loras: PositiveInt = 64
    """Adapters that vLLM keeps in memory; it reads others from disk at each use."""
    max_resident_adapters: PositiveInt = 64
    """Adapters that stay loaded on a replica, those used last; beyond `max_cpu_loras` they answer slowly."""
    max_model_len: PositiveInt | None = None
    """Longest request with its answer, in tokens; None: the model's context, or what the cache holds of it."""
    max_num_seqs: PositiveInt = 32
    cache_mib: PositiveInt = 256
    """Memory for keys and values of requests under way."""
    tool_call_parser: str = "hermes"
    """The parser of vLLM that finds calls of tools in answers, one for all base models; empty: no tools."""
    threads: PositiveInt | None = None
    cache_dir: Path = Path.home() / ".cache" / "retune" / "vllm"
    """What vLLM finds out once and keeps: nothing of a tenant."""

    @model_validator(mode="after")
    def _require_certificate(self) -> Self:
        """Nodes refuse to report in plain text."""
        if self.on_nodes and self.tls.ca_file and not self.tls.cert_file:
            raise ValueError(
                f"{CERT_FILE}: found nothing, expected a file because {CA_FILE} and on_nodes are set"
            )
        return self

    @model_validator(mode="after")
    def _require_devices(self) -> Self:
        """Several devices are leased, and computed on by as many processes."""
        if self.devices_per_replica > 1 and (self.pool is None or self.one_process):
            raise ValueError(
                f"devices_per_replica: found {self.devices_per_replica} with pool={self.pool} and "
                f"one_process={self.one_process}, expected a pool, and one_process=False"
            )
        return self

    @model_validator(mode="after")
    def _require_pool(self) -> Self:
        if self.on_nodes and self.pool is None:
            raise ValueError("pool: found nothing, expected the name of a pool because on_nodes is set")
        return self

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        if (self.max_replicas_per_pool or self.replicas_per_pool) < self.replicas_per_pool:
            raise ValueError(
                f"max_replicas_per_pool: found {self.max_replicas_per_pool}, expected at least "
                f"replicas_per_pool={self.replicas_per_pool}"
            )
        return self

    @property
    def leases(self) -> DeviceLeases | None:
        if self.pool is None:
            return None
        return DeviceLeases(
            pool=self.pool,
            devices=self.devices_per_replica,
            purpose="serving",
            term=self.lease_term,
            has_nodes=self.on_nodes,
        )

    @property
    def policy(self) -> Policy:
        return Policy(
            replicas_per_pool=self.replicas_per_pool,
            max_replicas_per_pool=self.max_replicas_per_pool or self.replicas_per_pool,
            requests_per_replica=self.max_num_seqs,
            scale_up_after=timedelta(seconds=self.scale_up_seconds),
            scale_down_after=timedelta(seconds=self.scale_down_seconds),
            drain_within=timedelta(seconds=self.drain_seconds),
            serve_base_models=self.serve_base_models,
            rank=self.max_lora_rank,
            max_adapters=self.max_loras,
            resident_adapters=self.max_resident_adapters,
            keep=timedelta(seconds=self.keep_seconds),
            start_within=timedelta(seconds=self.start_within_seconds),
        )

    @property
    def engine(self) -> Engine:
        return Engine(
            host=self.replica_host,
            dtype=self.dtype,
            enforce_eager=self.enforce_eager,
            one_process=self.one_process,
            num_devices=self.devices_per_replica,
            max_loras=self.max_loras,
            max_cpu_loras=max(self.max_cpu_loras, self.max_loras),
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            cache_bytes=self.cache_mib * 1024 * 1024,
            tool_call_parser=self.tool_call_parser,
            threads=self.threads,
            cache_dir=self.cache_dir,
            is_over_tls=self.tls.ca_file is not None,
        )
