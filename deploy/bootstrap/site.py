"""A site: where Kafka, Postgres and S3 answer, and everybody's passwords there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shared.messaging.administration import ClientQuotas
from shared.messaging.topics import KafkaTopics

DATABASE = "retune"
BUCKET = "retune"
REGION = "us-east-1"

KAFKA_SUPER_USER = "broker"
POSTGRES_SUPER_USER = "postgres"
S3_ROOT = "root"


@dataclass(frozen=True)
class Credentials:
    access_key: str
    secret_key: str


@dataclass(frozen=True)
class Site:
    kafka_bootstrap: str
    postgres_address: str
    """`host:port`"""
    s3_endpoint: str
    secret: Callable[[str], str]
    """The password called `kafka:<user>`, `postgres:<role>`, `s3:<user>`, `admin-key` or `api-key:<tenant>`."""
    kafka_mechanism: str = "SCRAM-SHA-512"
    """How the broker's own user logs in."""
    topics: KafkaTopics = field(default_factory=KafkaTopics)
    runner_pools: tuple[str, ...] = ()
    """Pools whose nodes have a login of their own to Kafka."""
    runner_quotas: ClientQuotas = field(default_factory=ClientQuotas)
    """Of each of these logins."""
    former_runners: bool = True
    """Whether logins of runners that may read `agent.directives` keep that right, for nodes of an older release."""
    former_s3_users: tuple[str, ...] = ()
    """Those of an older release whose passwords are still known (`schemas.layout.FORMER_ACCESS`)."""
    ca_file: Path | None = None
    """Authorities that every server is verified with over TLS; None: plain text."""

    def kafka_password(self, user: str) -> str:
        return self.secret(f"kafka:{user}")

    def postgres_dsn(self, role: str, *, database: str = DATABASE) -> str:
        return f"postgresql://{role}:{self.postgres_password(role)}@{self.postgres_address}/{database}"

    def postgres_password(self, role: str) -> str:
        return self.secret(f"postgres:{role}")

    def s3_credentials(self, user: str) -> Credentials:
        return Credentials(user, self.secret(f"s3:{user}"))
