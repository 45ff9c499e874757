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
    """Directory of the inputs and outputs of running validations; emptied at start."""
    memory_bytes: Annotated[int, Field(ge=1 << 30)] = 6 << 30
    """Address space of a validating process."""
    time_limit: timedelta = timedelta(hours=2)
    """Limit of one validation, by the clock and by the processor."""
    workers: Annotated[int, Field(ge=1)] = 1
    """Number of processes that one validation examines rows in."""
    validations: PositiveInt | None = None
    """Number of validations at once; None: as many as there are cores for their workers. Each may take
    `memory_bytes`."""

    @property
    def validations_at_once(self) -> int:
        return self.validations or max(1, usable_cores() // self.workers)
