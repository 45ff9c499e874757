"""A user of Kafka, and where Kafka is."""

from dataclasses import dataclass

from shared.settings import ServiceSettings


@dataclass(frozen=True)
class Login:
    bootstrap: str
    username: str
    password: str
    security_protocol: str = "SASL_PLAINTEXT"

    @classmethod
    def of(cls, settings: ServiceSettings) -> "Login":
        password = settings.kafka_password.get_secret_value()
        return cls(
            settings.kafka_bootstrap, settings.kafka_username, password, settings.kafka_security_protocol
        )
