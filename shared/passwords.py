"""Passwords that two services can derive, so that no message carries them."""

import hashlib
import hmac


def derived_password(secret: str, user: str, nonce: str) -> str:
    """Return a password that cannot be derived from the user's name and the nonce without the secret."""
    return hmac.new(secret.encode(), f"{user}\n{nonce}".encode(), hashlib.sha256).hexdigest()
