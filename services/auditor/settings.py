"""Environment of the auditor."""

from datetime import timedelta
from pathlib import Path

from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="AUDITOR_", frozen=True)

    signing_key_file: Path
    """PEM; made at the first start. No other service may read it."""
    public_key_file: Path
    """PEM; written at each start, for the operator."""
    read_every: timedelta = timedelta(seconds=1)
    look_every: timedelta = timedelta(seconds=10)
    """How often new topics, and losses, are looked for."""
    sign_every: timedelta = timedelta(minutes=1)
