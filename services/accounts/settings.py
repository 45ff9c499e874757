"""Typed environment of accounts."""

from pydantic import PositiveInt, SecretStr
from pydantic_settings import SettingsConfigDict

from schemas.envelope import MAX_BATCH_BYTES
from shared.messaging.administration import ClientQuotas
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
    """Days for which the topics of tenants that are opened here keep records: as `python -m deploy.bootstrap` is
    given it."""

    producer_byte_rate: PositiveInt | None = 1024**2
    consumer_byte_rate: PositiveInt | None = 16 * 1024**2
    request_percentage: PositiveInt | None = 50
    """Quotas of each user that is made here, at each broker: the two rates are bytes a second, this is per cent of
    its threads' time (100 is one thread). None: no limit."""

    @property
    def quotas(self) -> ClientQuotas:
        return ClientQuotas(self.producer_byte_rate, self.consumer_byte_rate, self.request_percentage)

    @property
    def topics(self) -> KafkaTopics:
        return KafkaTopics(
            self.replication_factor,
            self.min_insync_replicas,
            self.max_message_bytes,
            self.tenant_retention_days,
        )
