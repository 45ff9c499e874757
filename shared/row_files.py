"""What is known of a file of rows without the library that reads Parquet."""

from pathlib import Path

MAGIC, ENCRYPTED = b"PAR1", b"PARE"
ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
"""Of a process that reads Parquet under a limit of addresses: the library's own pool reserves more than it uses."""
MAX_GATE_BYTES = 512 * 1024 * 1024
"""Most bytes of a suite, and of the JSON lines of a holdout in Parquet: the gate has all their rows in memory."""


def is_parquet(path: Path) -> bool:
    """Return what the first bytes say. Such a file may still be encrypted, or cut off."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) in (MAGIC, ENCRYPTED)
