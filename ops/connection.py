"""How to reach the platform: from the environment, else from the local stack's `env` file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.errors import Unreachable
from shared.env_file import read_env_file
from shared.messaging.login import Login
from shared.tls import CA_FILE, client_context, require_https

DEFAULT_STATE = Path(".retune")
ADDRESSES = ("RETUNE_BASE_URL", "RETUNE_S3_ENDPOINT")
OPERATOR = "admin"
"""The operator's user of Kafka, as the contract names it."""


@dataclass(frozen=True)
class Bucket:
    """The operator's key to S3; it reads everything that services keep there."""

    endpoint: str
    access_key: str
    secret_key: str
    name: str
    ca_file: Path | None = None


@dataclass(frozen=True)
class Connection:
    base_url: str
    """Address of the gateway's API, with `/v1`."""
    api_key: str
    admin_key: str
    kafka: Login
    postgres_dsn: str = ""
    """Login of the operator, who reads every schema and writes none; empty where it was not given."""
    bucket: Bucket | None = None
    audit_public_key_file: str = ""
    """PEM: who signs what the auditor has read."""
    ca_file: Path | None = None
    """Authorities that every server is verified with over TLS; None: plain text."""

    def require_postgres(self) -> str:
        if not self.postgres_dsn:
            raise Unreachable("RETUNE_POSTGRES_DSN is not set; this command reads the services' schemas")
        return self.postgres_dsn

    def require_bucket(self) -> Bucket:
        if self.bucket is None:
            raise Unreachable("RETUNE_S3_ACCESS_KEY is not set; this command reads the object store")
        return self.bucket


def find_connection(environ: Mapping[str, str] = os.environ) -> Connection:
    variables = dict(environ)
    if "RETUNE_BASE_URL" not in variables:
        path = Path(variables.get("RETUNE_STATE", DEFAULT_STATE)) / "env"
        if not path.exists():
            raise Unreachable(f"no stack found: {path} does not exist; start one with `retune up`")
        variables |= read_env_file(path)
    ca_file = _ca_file(variables)
    try:
        kafka = Login(
            variables["RETUNE_KAFKA_BOOTSTRAP"],
            variables["RETUNE_KAFKA_USERNAME"],
            variables["RETUNE_KAFKA_PASSWORD"],
            ca_file,
        )
        return Connection(
            variables["RETUNE_BASE_URL"],
            variables["RETUNE_API_KEY"],
            variables.get("RETUNE_ADMIN_KEY", ""),
            kafka,
            variables.get("RETUNE_POSTGRES_DSN", ""),
            _bucket(variables, ca_file),
            variables.get("RETUNE_AUDIT_PUBLIC_KEY_FILE", ""),
            ca_file,
        )
    except KeyError as error:
        raise Unreachable(f"{error.args[0]} is not set; start a local stack with `retune up`") from error


def _ca_file(variables: Mapping[str, str]) -> Path | None:
    """Raises Unreachable for a file that is none, and for an address in plain text where there is one."""
    path = Path(variables[CA_FILE]) if variables.get(CA_FILE) else None
    try:
        client_context(path)
        require_https(path, **{name: variables.get(name, "") for name in ADDRESSES})
    except ValueError as error:
        raise Unreachable(str(error)) from error
    return path


def _bucket(variables: Mapping[str, str], ca_file: Path | None) -> Bucket | None:
    if "RETUNE_S3_ACCESS_KEY" not in variables:
        return None
    return Bucket(
        variables.get("RETUNE_S3_ENDPOINT", ""),
        variables["RETUNE_S3_ACCESS_KEY"],
        variables["RETUNE_S3_SECRET_KEY"],
        variables.get("RETUNE_S3_BUCKET", "retune"),
        ca_file,
    )
