"""New passwords and keys. Imports nothing but Python's library, as the commands that write them need nothing else."""

import secrets


def new_secret() -> str:
    """Letters and digits alone, so that it needs no quotes in a shell, an address or a configuration."""
    return secrets.token_hex(20)
