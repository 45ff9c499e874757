"""Passwords that two services know and no message carries."""

import hashlib
import hmac


def derived_password(secret: str, user: str, nonce: str) -> str:
    """Who has the user's name and the nonce, but not the secret, knows nothing of it."""
    return hmac.new(secret.encode(), f"{user}\n{nonce}".encode(), hashlib.sha256).hexdigest()
