"""Environment of the provisioner, and the file of its pools."""

import tomllib
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator
from pydantic_settings import SettingsConfigDict

from schemas.base import CapacityType, DeviceKind, Usd
from services.provisioner.model import Pool
from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="PROVISIONER_", frozen=True)

    pools_file: Path
    """TOML, one table `[pools.<name>]` each: capacity_type, nodes, device, devices_per_node, price_per_hour,
    device_memory_gib, backend, and the backend's own table."""
    nodes_dir: Path
    """Where the local backend keeps a folder for each node."""
    runner_env_file: Path
    """Lines of NAME=value for the environment of every runner: its addresses and keys."""
    logs_retention: Annotated[timedelta, Field(ge=timedelta(days=30))] = timedelta(days=30)
    """How long folders of ended attempts are kept. Their names are used up as long as a message may come again."""


class SlurmPool(BaseModel):
    """Table `[pools.<name>.slurm]`: where the pool's nodes are in Slurm, and what its jobs are submitted with."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folder: Path
    """Folder that the provisioner and all nodes see under this path: what is asked of each node, and how it ended."""
    partition: str
    conf: Path | None = None
    """slurm.conf of the cluster; None: where Slurm's commands look for it."""
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    flags: tuple[str, ...] = ()
    """More arguments of sbatch; `{devices}` in one stands for the number of devices of each node."""
    srun_flags: tuple[str, ...] = ()
    """More arguments of the srun that starts the runners."""
    env_file: Path | None = None
    """File of the runners' addresses and keys, read on each node; None: the path of PROVISIONER_RUNNER_ENV_FILE."""
    work_dir: Path | None = None
    """Folder on each node for what runners work with; None: in `folder`."""
    fenced_after_seconds: Annotated[float, Field(gt=0)] = 90.0
    """Time after which a runner that nobody reaches has ended itself, once its grant is withdrawn: 15 s, and the
    time for which a node may take a removed file of `folder` for there."""


class PoolEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    capacity_type: CapacityType
    nodes: NonNegativeInt
    devices_per_node: PositiveInt = 1
    price_per_hour: Usd = Decimal(0)
    device: DeviceKind
    """Kind of device that its nodes compute on; a training process that does not have it ends as `infra`."""
    device_memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory of each device; jobs that need more are refused at submit."""
    backend: Literal["local", "slurm"] = "local"
    """What has its nodes: this machine, or a Slurm that the table `slurm` describes."""
    slurm: SlurmPool | None = None

    @model_validator(mode="after")
    def _has_its_table(self) -> Self:
        if (self.backend == "slurm") != (self.slurm is not None):
            raise ValueError(
                f'backend is "{self.backend}": expected the table slurm with backend = "slurm" alone'
            )
        return self

    @property
    def device_memory_bytes(self) -> int | None:
        return None if self.device_memory_gib is None else int(self.device_memory_gib * 2**30)


class PoolsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    pools: dict[str, PoolEntry]


def parse_pools(text: str) -> dict[str, Pool]:
    """Read the pools from TOML. Raises ValueError (tomllib's or pydantic's) naming what is wrong."""
    return {
        name: Pool(
            name,
            entry.capacity_type,
            entry.nodes,
            entry.devices_per_node,
            entry.price_per_hour,
            file_nodes=entry.nodes,
            device=entry.device,
            device_memory_bytes=entry.device_memory_bytes,
            backend=entry.backend,
        )
        for name, entry in _entries(text).items()
    }


def parse_slurm(text: str) -> dict[str, SlurmPool]:
    """Read of the same TOML what the pools of Slurm are, by pool."""
    return {name: entry.slurm for name, entry in _entries(text).items() if entry.slurm is not None}


def _entries(text: str) -> dict[str, PoolEntry]:
    return PoolsFile.model_validate(tomllib.loads(text, parse_float=Decimal)).pools
