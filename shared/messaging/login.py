"""A user of Kafka, and where Kafka is."""

from dataclasses import dataclass
from pathlib import Path

from shared.settings import ServiceSettings


@dataclass(frozen=True)
class Login:
    bootstrap: str
    username: str
    password: str
    ca_file: Path | None = None
    """Authorities that brokers are verified with over TLS; None: plain text."""

    @classmethod
    def of(cls, settings: ServiceSettings) -> "Login":
        password = settings.kafka_password.get_secret_value()
        return cls(settings.kafka_bootstrap, settings.kafka_username, password, settings.tls.ca_file)
