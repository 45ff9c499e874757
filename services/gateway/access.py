"""Who is calling: API keys are 256 random bits, shown once, stored as sha256."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from schemas.specification import Tier
from services.gateway.quotas import Quotas

KEY_PREFIX = "sk-retune-"
OPERATOR = ""
"""Name that takes the place of a tenant for the operator's files, which no tenant's key opens."""


@dataclass(frozen=True)
class Principal:
    tenant: str
    tier: Tier
    quotas: Quotas
    key_id: str = ""
    """`key-…`: which of the tenant's keys it was; it opens nothing."""


def new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def is_same_key(key: str, expected: str) -> bool:
    return hmac.compare_digest(key.encode(), expected.encode())
