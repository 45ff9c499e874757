"""Environment of a replica's node: what the operator gives all of them, and whose node this one is."""

from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.tls import Tls, require_https


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="RUNNER_", frozen=True, use_attribute_docstrings=True)

    serving_controller_url: str
    """Address of serving_controller, which nodes of replicas ask what they are to do."""

    lease_id: str
    node_id: str
    work_dir: Path
    grant_file: Path | None = None
    """File that holds the node's id for as long as the cluster backend lets this node have its place. None: the
    backend grants nothing, and `fence_after` alone decides."""
    node_key_file: Path
    """File of the private key that this node signs with what it asks serving_controller."""
    cache_dir: Path
    """Directory of base models, shared by the nodes of one machine."""
    host: str = "127.0.0.1"
    """Address of this machine at which the replica listens, and under which others ask it."""
    fence_after: timedelta = timedelta(seconds=15)
    """Time without an answer, or without reading its grant where it has one, after which the node ends itself and its
    replica."""
    replica_argv: tuple[str, ...] | None = None
    """Command that is started instead of vLLM's server, with vLLM's options."""
    replica_reads: tuple[Path, ...] = ()
    """More paths that the replica reads."""
    tls: Tls = Field(default_factory=Tls)

    @model_validator(mode="after")
    def _require_tls(self) -> Self:
        require_https(self.tls.ca_file, RUNNER_SERVING_CONTROLLER_URL=self.serving_controller_url)
        return self
