"""Environment of a runner: what the operator gives all of them, and whose node this one is."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field, PositiveInt, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.tls import Tls, require_https


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="RUNNER_", frozen=True, use_attribute_docstrings=True)

    kafka_bootstrap: str
    kafka_username: str
    kafka_password: SecretStr
    trainer_agent_url: str
    """Address of trainer_agent, which signs this node's requests to S3."""

    job_id: str
    tenant: str
    attempt: int
    node_index: int
    node_id: str
    devices: str = ""
    """Numbers of the devices that this node has, with commas. Empty: the cluster backend assigned them itself."""
    work_dir: Path
    notice_file: Path
    """File that appears when the node will be taken back: an RFC 3339 time, on Postgres' clock."""
    grant_file: Path | None = None
    """File that holds the node's id for as long as the cluster backend lets this node have its place. None: the
    backend grants nothing, and `fence_after` alone decides."""
    node_key_file: Path
    """File of the private key that this node signs with what it reports, measures and asks trainer_agent for."""
    cache_dir: Path
    """Directory of base models, shared by the nodes of one machine."""
    host: str = "127.0.0.1"
    """Address at which the other nodes of the gang reach this one."""

    omp_num_threads: PositiveInt | None = None
    """Number of CPU threads of each training process. None: the machine's cores divided by its devices."""
    child_argv: tuple[str, ...] | None = None
    """Command that is started instead of the training processes, with the work directory as the last argument. It has
    all files of the runner's user."""

    heartbeat_every: timedelta = timedelta(seconds=5)
    fence_after: timedelta = timedelta(seconds=15)
    """Time without an acknowledged heartbeat, or without reading its grant where it has one, after which the runner
    ends itself and its child."""
    outage_limit: timedelta = timedelta(hours=24)
    """Time without an acknowledged heartbeat after which a runner ends itself although its grant holds."""
    notice_wait: timedelta = timedelta(seconds=2)
    """How long a notice waits for the directive that should follow it, before the runner stops automatically."""
    default_grace: timedelta = timedelta(seconds=30)
    """Time left after a SIGTERM that came without a notice file, or before any directive."""
    deadline_margin: timedelta = timedelta(seconds=1)
    """Time kept free before a stop's deadline for the last report and the end of the log."""
    inputs_limit: timedelta = timedelta(minutes=5)
    """How long S3 may be away while inputs are fetched. Then the nodes are given back, and the job waits without."""
    setup_limit: timedelta = timedelta(minutes=15)
    step_limit: timedelta = timedelta(minutes=5)
    save_limit: timedelta = timedelta(minutes=15)
    """Time without progress in this section of training after which the child is hung, as with the other two limits.
    Micro batches are progress."""
    flush_limit: timedelta = timedelta(seconds=20)
    """How long a failed attempt may continue to store bundles that were complete before the failure."""
    metrics_every: timedelta = timedelta(seconds=2)
    log_every: timedelta = timedelta(seconds=2)
    tls: Tls = Field(default_factory=Tls)

    def model_post_init(self, _: object) -> None:
        require_https(self.tls.ca_file, RUNNER_TRAINER_AGENT_URL=self.trainer_agent_url)
        if self.fence_after < 3 * self.heartbeat_every:
            raise ValueError(
                f"fence_after ({self.fence_after}) must cover three heartbeats of {self.heartbeat_every}"
            )
        if self.outage_limit < self.fence_after:
            raise ValueError(
                f"outage_limit ({self.outage_limit}) must cover fence_after ({self.fence_after})"
            )
