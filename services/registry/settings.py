"""Typed environment of the registry."""

from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import PositiveInt, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="REGISTRY_", frozen=True)

    scratch_dir: Path
    """Downloads and copies under way; emptied after each."""
    copy_attempts: int = 12
    """How often one copy may fail on its own account, with back-off up to 30 s, before the artifact is refused."""
    import_max_files: PositiveInt = 2_000
    """Greatest number of files in a base model's folder or repository; more are refused before any is copied."""
    import_max_file_bytes: PositiveInt = 128 * 1024**3
    """Greatest size of one file of a base model."""
    import_max_total_bytes: PositiveInt = 2 * 1024**4
    """Greatest size of all files of a base model together."""
    export_memory_bytes: PositiveInt | None = None
    """Memory that the process of an export may take; without it what the machine or container has available when the
    export begins. An export that needs more is refused."""
    export_threads: PositiveInt | None = None
    """Threads of the process of an export; without it its libraries choose."""
    export_limit: timedelta = timedelta(hours=6)
    """Time after which the process of an export is ended, and the export has failed."""
    hub_endpoint: str | None = None
    """Another address than the public hub's, for example a mirror."""
    hub_token: SecretStr | None = None
    """Token for repositories that ask for one; without it the hub is asked as anybody."""

    @model_validator(mode="after")
    def _file_within_total(self) -> Self:
        if self.import_max_file_bytes > self.import_max_total_bytes:
            raise ValueError(
                f"import_max_file_bytes ({self.import_max_file_bytes}) must not exceed "
                f"import_max_total_bytes ({self.import_max_total_bytes})"
            )
        return self
