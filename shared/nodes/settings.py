"""Environment of a program on the node of a lease."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.tls import Tls


class LeaseNodeSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="RUNNER_", frozen=True, use_attribute_docstrings=True)

    lease_id: str
    node_id: str
    work_dir: Path
    grant_file: Path | None = None
    """File that holds the node's id for as long as the cluster backend lets this node have its place. None: the
    backend grants nothing, and `fence_after` alone decides."""
    node_key_file: Path
    """File of the private key that this node signs with what it asks the holder of its lease."""
    cache_dir: Path
    """Directory of base models, shared by the nodes of one machine."""
    fence_after: timedelta = timedelta(seconds=15)
    """Time without an answer, or without reading its grant where it has one, after which the node ends itself, and
    what it has started."""
    tls: Tls = Field(default_factory=Tls)
