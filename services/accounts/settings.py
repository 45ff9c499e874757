"""Typed environment of accounts."""

from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from schemas.envelope import MAX_BATCH_BYTES
from shared.messaging.topics import KafkaTopics
from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="ACCOUNTS_", frozen=True)

    password_secret: SecretStr
    """Shared with the gateway: a user's password follows from it and from the nonce of a command."""
    replication_factor: int = 1
    min_insync_replicas: int = 1
    max_message_bytes: int = MAX_BATCH_BYTES
    tenant_retention_days: int = 30
    """As `python -m deploy.provision` is told: of topics of tenants that are opened here."""

    @property
    def topics(self) -> KafkaTopics:
        return KafkaTopics(
            self.replication_factor,
            self.min_insync_replicas,
            self.max_message_bytes,
            self.tenant_retention_days,
        )
