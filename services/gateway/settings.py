"""Typed environment of the gateway."""

from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from pydantic import PositiveInt, SecretStr
from pydantic_settings import SettingsConfigDict

from services.gateway.quotas import Quotas
from shared.settings import ServiceSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True)

    admin_key: SecretStr
    bootstrap_tenant: str
    bootstrap_api_key: SecretStr
    """Stored hashed at start, so that a fresh stack has one tenant that can work."""
    password_secret: SecretStr
    """Shared with accounts: passwords of Kafka users follow from it."""
    scratch_dir: Path
    replica_keys_dir: Path
    """One file per replica with the key of its API; never part of an event."""
    max_upload_bytes: int = 2 * 1024**3
    max_transfers: int = 64
    max_transfer_bytes: int = 64 * 1024**3
    max_streams: int = 2_000
    """Streams of all tenants together, in each process of the gateway; beyond it 503."""
    max_inference_requests: int = 1_000
    """Chats and completions of all tenants together, in each process of the gateway; beyond it 503."""
    inference_timeout_seconds: float = 300.0
    command_wait_seconds: float = 10.0
    """How long a request waits for the service that decides to accept or refuse its command."""
    quotas: Quotas = Quotas()
    """Quotas of tenants for which the operator decided nothing else; in JSON, `{"open_jobs": 50}`."""
    route_wait_seconds: float = 10.0
    """How long a chat request waits for the route of a model that is approved already, or has to be loaded again."""
    webhook_secret: SecretStr
    """Signing secrets of webhook endpoints follow from it; with another one all of them are others."""
    webhook_allow_http: bool = False
    """Whether webhooks are sent to endpoints without TLS, too."""
    webhook_allowed_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks beside the public internet to which webhooks are sent; in JSON, `["10.1.0.0/16"]`."""
    webhook_timeout_seconds: float = 10.0
    """Limit of one attempt to deliver a webhook, from the look-up of the host to the status of the answer."""
    webhook_retry_seconds: float = 5.0
    """First pause after an attempt that failed; each is twice the one before, up to an hour."""
    webhook_max_in_flight: PositiveInt = 32
    """Webhooks that each process of the gateway sends at once."""
    webhook_retention: timedelta = timedelta(days=30)
    """Retention of deliveries, from when they were created."""
    event_retention: timedelta = timedelta(days=7)
    """Retention of the events that people read on the page, of each tenant the newest hundred thousand at most."""
