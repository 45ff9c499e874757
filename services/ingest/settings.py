"""Typed environment of ingest."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt
from pydantic_settings import SettingsConfigDict

from shared.cores import usable_cores
from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="INGEST_", frozen=True)

    scratch_dir: Path
    """Inputs and outputs of a running validation; emptied at start."""
    memory_bytes: Annotated[int, Field(ge=1 << 30)] = 6 << 30
    """Address space of a validating process."""
    time_limit: timedelta = timedelta(hours=2)
    """Of one validation, by the clock and by the processor."""
    workers: Annotated[int, Field(ge=1)] = 1
    """Processes that one validation examines rows in."""
    validations: PositiveInt | None = None
    """Done at once; None: as many as there are cores for their workers. Each may take `memory_bytes`."""

    @property
    def validations_at_once(self) -> int:
        return self.validations or max(1, usable_cores() // self.workers)
