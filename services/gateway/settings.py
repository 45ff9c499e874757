"""Typed environment of the gateway."""

from pathlib import Path

from pydantic import SecretStr
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
