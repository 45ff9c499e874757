"""Environment of a replica's node: what the operator gives all of them, and whose node this one is."""

from pathlib import Path
from typing import Self

from pydantic import model_validator

from shared.nodes.settings import LeaseNodeSettings
from shared.tls import require_https


class Settings(LeaseNodeSettings):
    serving_controller_url: str
    """Address of serving_controller, which nodes of replicas ask what they are to do."""

    host: str = "127.0.0.1"
    """Address of this machine at which the replica listens, and under which others ask it."""
    replica_argv: tuple[str, ...] | None = None
    """Command that is started instead of vLLM's server, with vLLM's options."""
    replica_reads: tuple[Path, ...] = ()
    """More paths that the replica reads."""

    @model_validator(mode="after")
    def _require_tls(self) -> Self:
        require_https(self.tls.ca_file, RUNNER_SERVING_CONTROLLER_URL=self.serving_controller_url)
        return self
