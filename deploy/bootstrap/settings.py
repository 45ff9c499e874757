"""Typed environment of `python -m deploy.bootstrap`."""

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.envelope import MAX_BATCH_BYTES
from shared.messaging.administration import ClientQuotas
from shared.messaging.topics import KafkaTopics
from shared.tls import Tls, require_https

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

PoolLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
"""Name of a pool that is part of a user's name and of a variable's."""

WHERE = "addresses and TENANT come from docker-compose.yml, passwords from .env"


def variable(secret: str) -> str:
    """`kafka:tenant-demo` is found in SECRET_KAFKA_TENANT_DEMO."""
    return "SECRET_" + _key(secret).upper()


def _key(secret: str) -> str:
    return secret.replace(":", "_").replace("-", "_").lower()


class Settings(BaseSettings):
    """A variable that is empty is one that is not set, as docker compose passes it on."""

    model_config = SettingsConfigDict(
        frozen=True,
        use_attribute_docstrings=True,
        env_ignore_empty=True,
        env_nested_delimiter="_",
        env_nested_max_split=1,
    )

    kafka_bootstrap: str
    kafka_mechanism: Literal["SCRAM-SHA-512", "PLAIN"] = "SCRAM-SHA-512"
    """How the broker's own user logs in; PLAIN is for a Kafka that starts without users of SCRAM, at a listener that
    knows this one alone. All users that are made log in by SCRAM-SHA-512."""
    postgres_address: str
    """`host:port`"""
    s3_endpoint: str
    s3_accounts: bool = True
    """Whether S3's bucket, accounts and policy are made here, by routes that versitygw has beside the protocol;
    False: they are there already, with the names and passwords that are used here."""
    tenant: str
    """Name of the first tenant, whose topics and users are made; others are made by `retune tenants create`."""
    secret: dict[str, SecretStr] = {}
    """Each password, as `SECRET_<NAME>`: that of Kafka's user `scheduler` is SECRET_KAFKA_SCHEDULER."""
    kafka_replication_factor: int = 1
    """Number of brokers that have a copy."""
    kafka_min_insync_replicas: int | None = None
    """Number of copies that have a record before it is acknowledged; None: one less than there are, at least one."""
    kafka_max_message_bytes: int = MAX_BATCH_BYTES
    """Limit of a batch as it is sent, after compression."""
    kafka_tenant_retention_days: int = 30
    """Number of days for which `tenant.<t>.events` keeps a fact."""

    kafka_runner_pools: tuple[PoolLabel, ...] = ()
    """JSON list of pools whose nodes have a login of their own, `runner-<pool>`, with its password in
    SECRET_KAFKA_RUNNER_<POOL>. A pool that leaves the list has no right any more."""
    kafka_runner_producer_byte_rate: PositiveInt | None = None
    """Number of bytes that the nodes of such a pool may write a second, together, at each broker. None: no limit."""
    kafka_runner_consumer_byte_rate: PositiveInt | None = None
    """Number of bytes that they may read a second, together, at each broker. None: no limit."""

    kafka_former_runners: bool = True
    """Whether logins of runners that may read `agent.directives` keep that right, for nodes of an older release; no
    login is given it any more. False takes it away: once no such node runs."""

    tls: Tls = Field(default_factory=Tls)

    @model_validator(mode="after")
    def _require_tls(self) -> "Settings":
        require_https(self.tls.ca_file, S3_ENDPOINT=self.s3_endpoint)
        return self

    @model_validator(mode="after")
    def _require_sound_topics(self) -> "Settings":
        assert self.topics
        return self

    @cached_property
    def topics(self) -> KafkaTopics:
        """Raises ValueError where a number contradicts another."""
        factor = self.kafka_replication_factor
        in_sync = self.kafka_min_insync_replicas
        return KafkaTopics(
            replication_factor=factor,
            min_insync_replicas=max(1, factor - 1) if in_sync is None else in_sync,
            max_message_bytes=self.kafka_max_message_bytes,
            tenant_retention_days=self.kafka_tenant_retention_days,
        )

    @property
    def runner_quotas(self) -> ClientQuotas:
        return ClientQuotas(self.kafka_runner_producer_byte_rate, self.kafka_runner_consumer_byte_rate)

    def has_password(self, secret: str) -> bool:
        return _key(secret) in self.secret

    def password(self, secret: str) -> str:
        """Raises SystemExit where it is not set."""
        value = self.secret.get(_key(secret))
        if value is None:
            raise SystemExit(f"{variable(secret)} is not set; {WHERE}")
        return value.get_secret_value()


def settings_of_the_environment() -> Settings:
    """Raises SystemExit, which names every variable that is missing or wrong."""
    try:
        return Settings()
    except ValidationError as error:
        raise SystemExit("\n".join(_sentence(each) for each in error.errors())) from error


def _sentence(problem: "ErrorDetails") -> str:
    name = "_".join(str(part) for part in problem["loc"]).upper()
    if problem["type"] == "missing":
        return f"{name} is not set; {WHERE}"
    what = problem["msg"].removeprefix("Value error, ")
    return f"{name}: found {problem['input']!r}: {what}" if name else what
