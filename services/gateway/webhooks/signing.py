"""Signatures of Standard Webhooks (version 1, HMAC-SHA256), and the secrets that they are made with. Pure.

A secret follows from a secret of the gateway's environment and a nonce, so that no table has it.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime

from services.gateway.webhooks.model import Endpoint
from shared.passwords import derived_password

PREFIX = "whsec_"
HINT_CHARACTERS = 4


def signing_secret(root: str, endpoint_id: str, nonce: str) -> str:
    """Return the secret as its owner is shown it: `whsec_` and 32 bytes in base64."""
    raw = bytes.fromhex(derived_password(root, f"webhook {endpoint_id}", nonce))
    return PREFIX + base64.b64encode(raw).decode()


def hint(secret: str) -> str:
    return f"{PREFIX}…{secret[-HINT_CHARACTERS:]}"


def secrets_of(endpoint: Endpoint, root: str, *, now: datetime) -> list[str]:
    """Return the present secret, and the one before it as long as it is valid."""
    nonces = [endpoint.nonce]
    if endpoint.previous_nonce and endpoint.previous_until and now < endpoint.previous_until:
        nonces.append(endpoint.previous_nonce)
    return [signing_secret(root, endpoint.endpoint_id, nonce) for nonce in nonces]


def signature(secret: str, *, event_id: str, timestamp: int, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{event_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def signed_headers(secrets: Sequence[str], *, event_id: str, now: datetime, body: bytes) -> dict[str, str]:
    """Return the three headers of Standard Webhooks, with one signature for each secret."""
    timestamp = int(now.timestamp())
    signatures = [signature(each, event_id=event_id, timestamp=timestamp, body=body) for each in secrets]
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
