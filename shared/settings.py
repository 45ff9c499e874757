"""Settings that every service reads from its environment once, at start. Each subclass sets its prefix."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Self

from pydantic import Field, PositiveInt, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.tls import Tls, require_https


class Timing(BaseSettings):
    """Durations whose relative order is checked at start.

    Safety depends on lease tokens and on none of these; they bound waste.
    """

    model_config = SettingsConfigDict(frozen=True, env_prefix="TIMING_", use_attribute_docstrings=True)

    handler_budget: timedelta = timedelta(seconds=5)
    revoke_wait: timedelta = timedelta(seconds=5)
    rebalance_timeout: timedelta = timedelta(seconds=30)
    session_timeout: timedelta = timedelta(seconds=30)
    heartbeat: timedelta = timedelta(seconds=3)
    lease_ttl: timedelta = timedelta(seconds=15)
    lease_renew: timedelta = timedelta(seconds=5)
    postgres_silence: timedelta = timedelta(seconds=15)
    """Time without an answer after which a connection is taken for dead although it was not closed."""
    segment_age: timedelta = timedelta(days=8)
    """How much longer than its topic's retention a record may be read, because Kafka deletes whole segments."""
    outbox_retention: timedelta = timedelta(days=7)
    resolved_retention: timedelta = timedelta(days=90)
    """Retention of parked rows that a person has replayed or dropped, and of events that a person has dropped."""
    history_retention: Annotated[timedelta, Field(ge=timedelta(days=60))] = timedelta(days=180)
    """Retention of an ended job's steps, events, attempts, logs and refusals; it is longer than any topic's."""
    turn_retention: timedelta = timedelta(days=1)
    """Retention of the time when a tenant was last served; a tenant not served for that long is next."""

    @model_validator(mode="after")
    def _stand_in_order(self) -> Self:
        pairs = (
            ("handler_budget", self.handler_budget, "revoke_wait", self.revoke_wait),
            ("revoke_wait", self.revoke_wait, "rebalance_timeout", self.rebalance_timeout),
            ("rebalance_timeout", self.rebalance_timeout, "session_timeout", self.session_timeout),
            ("3 x heartbeat", 3 * self.heartbeat, "session_timeout", self.session_timeout),
            ("handler_budget", self.handler_budget, "postgres_silence", self.postgres_silence),
            ("3 x lease_renew", 3 * self.lease_renew, "lease_ttl", self.lease_ttl),
            ("7 days", timedelta(days=7), "outbox_retention", self.outbox_retention),
        )
        for small_name, small, large_name, large in pairs:
            if small > large:
                raise ValueError(f"{small_name} ({small}) must not exceed {large_name} ({large})")
        return self


@dataclass(frozen=True)
class Address:
    """Where a listener listens."""

    host: str
    port: int


class ServiceSettings(BaseSettings):
    """Settings without a default for an address or a secret; a missing variable stops the process with its name."""

    model_config = SettingsConfigDict(frozen=True, use_attribute_docstrings=True)

    kafka_bootstrap: str
    kafka_username: str
    kafka_password: SecretStr
    postgres_dsn: SecretStr
    s3_endpoint: str = ""
    s3_access_key: str = ""
    s3_secret_key: SecretStr = SecretStr("")
    s3_bucket: str = "retune"
    http_host: str = "127.0.0.1"
    http_port: int
    instance: int = 0
    """Number of this process among those of the service, unique by construction."""
    parked_rows_with_bytes: PositiveInt = 1_000
    """Quota per topic that tenants or nodes write; of a record beyond it only place, reason and digest are kept."""
    tenant_records_per_day: Annotated[int, Field(ge=10_000)] = 100_000
    """Records of one tenant's topic that each process reads at once, and in each day after that."""
    timing: Timing = Timing()
    tls: Tls = Field(default_factory=Tls)

    @model_validator(mode="after")
    def _require_tls(self) -> Self:
        name = f"{self.model_config['env_prefix']}S3_ENDPOINT"
        require_https(self.tls.ca_file, **{name: self.s3_endpoint})
        return self

    @property
    def listener_of_nodes(self) -> Address | None:
        """Where what nodes ask for is answered, and nothing else; None where no listener is for them alone."""
        return None


class NodeServiceSettings(ServiceSettings):
    """Settings of a service that nodes ask."""

    nodes_host: str = ""
    """Address of this machine at which the listener for nodes listens. Empty: `http_host`."""
    nodes_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Port of a listener for nodes, which answers what nodes ask for and has neither `/metrics` nor `/healthz`. The
    service's own listener answers nodes too. None: nodes have no listener of their own."""
    nodes_s3_endpoint: str = ""
    """Address at which nodes reach S3. Empty: `s3_endpoint`."""

    @model_validator(mode="after")
    def _require_what_nodes_reach(self) -> Self:
        prefix = self.model_config["env_prefix"]
        require_https(self.tls.ca_file, **{f"{prefix}NODES_S3_ENDPOINT": self.nodes_s3_endpoint})
        # A connection's port is all that shows by which listener it came.
        if self.nodes_port == self.http_port:
            raise ValueError(
                f"nodes_port: found {self.nodes_port}, which is http_port, expected another port"
            )
        return self

    @property
    def listener_of_nodes(self) -> Address | None:
        return (
            None if self.nodes_port is None else Address(self.nodes_host or self.http_host, self.nodes_port)
        )
