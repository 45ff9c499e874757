"""TLS of a process: the authorities that it verifies servers with, and the certificate of its own listener."""

import ssl
from pathlib import Path
from typing import Self

from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

CA_FILE = "RETUNE_CA_FILE"
CERT_FILE = "RETUNE_CERT_FILE"
KEY_FILE = "RETUNE_KEY_FILE"


class Tls(BaseSettings):
    model_config = SettingsConfigDict(
        frozen=True, env_prefix="RETUNE_", env_ignore_empty=True, use_attribute_docstrings=True
    )

    ca_file: Path | None = None
    """PEM file of the certificate authorities that servers are verified with. With it every client of Kafka,
    Postgres, S3 and replicas speaks TLS alone; without it the connections to Kafka and replicas are in plain text."""
    cert_file: Path | None = None
    """PEM file of the certificate of this process's HTTP listener, followed by its chain. With it the listener speaks
    HTTPS alone."""
    key_file: Path | None = None
    """PEM file of that certificate's private key, without a pass phrase. None: `cert_file` has the key as well."""

    @model_validator(mode="after")
    def _require_sound_files(self) -> Self:
        client_context(self.ca_file)
        _require_pair(self.cert_file, self.key_file)
        return self


def client_context(ca_file: Path | None) -> ssl.SSLContext | None:
    """Return a context that verifies a server and its name by these authorities alone; None without a file.

    Raises: ValueError, which names the setting, the file and what is wrong with it.
    """
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ValueError(_sentence(CA_FILE, ca_file, error, "a PEM file with certificates")) from error


def require_https(ca_file: Path | None, **addresses: str) -> None:
    """Raises ValueError, which names the setting, for an address in plain text although there are authorities."""
    for setting, address in addresses.items():
        if ca_file and address and not address.startswith("https://"):
            raise ValueError(f"{setting}: found {address}, expected https:// because {CA_FILE} is set")


def _require_pair(cert_file: Path | None, key_file: Path | None) -> None:
    """Raises ValueError unless there is neither, or a certificate and its key."""
    if cert_file is None and key_file is not None:
        raise ValueError(f"{CERT_FILE}: found nothing, expected a file because {KEY_FILE} is set")
    if cert_file is None:
        return
    for setting, path in ((CERT_FILE, cert_file), (KEY_FILE, key_file)):
        if path and not path.is_file():
            raise ValueError(f"{setting}: found no file {path}, expected a PEM file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_file, key_file, _no_pass_phrase)
    except OSError as error:
        raise ValueError(
            f"{CERT_FILE}: found {cert_file} with the key of {key_file or cert_file}, which do not load ({error}), "
            "expected a PEM certificate and its PEM key without a pass phrase"
        ) from error


def _no_pass_phrase() -> str:
    """Keep OpenSSL from asking at the terminal."""
    return ""


def _sentence(setting: str, path: Path, error: OSError, expected: str) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{setting}: found no file {path}, expected {expected}"
    return f"{setting}: found {path}, which does not load ({error}), expected {expected}"
