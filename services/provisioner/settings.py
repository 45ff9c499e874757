"""Environment of the provisioner, and the file of its pools."""

import tomllib
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic_settings import SettingsConfigDict

from schemas.base import CapacityType, DeviceKind, Usd
from services.provisioner.model import Pool
from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="PROVISIONER_", frozen=True)

    pools_file: Path
    """TOML, one table `[pools.<name>]` each: capacity_type, nodes, device, devices_per_node, price_per_hour,
    device_memory_gib."""
    nodes_dir: Path
    """Where the local backend keeps a folder for each node."""
    runner_env_file: Path
    """Lines of NAME=value for the environment of every runner: its addresses and keys."""
    logs_retention: Annotated[timedelta, Field(ge=timedelta(days=30))] = timedelta(days=30)
    """How long folders of ended attempts are kept. Their names are used up as long as a message may come again."""


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

    @property
    def device_memory_bytes(self) -> int | None:
        return None if self.device_memory_gib is None else int(self.device_memory_gib * 2**30)


class PoolsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    pools: dict[str, PoolEntry]


def parse_pools(text: str) -> dict[str, Pool]:
    """Read the pools from TOML. Raises ValueError (tomllib's or pydantic's) naming what is wrong."""
    content = tomllib.loads(text, parse_float=Decimal)
    entries = PoolsFile.model_validate(content).pools
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
        )
        for name, entry in entries.items()
    }
