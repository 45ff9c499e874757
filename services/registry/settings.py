"""Typed environment of the registry."""

from pathlib import Path

from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="REGISTRY_", frozen=True)

    scratch_dir: Path
    """Downloads and copies under way; emptied after each."""
    copy_attempts: int = 12
    """Tries of one copy, with back-off up to 30 s between them, before the artefact is refused."""
    hub_endpoint: str | None = None
    """Another address than the public hub's, for example a mirror."""
