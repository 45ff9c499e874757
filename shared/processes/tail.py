"""The end of a log, for the message of an error."""

import os
from pathlib import Path

TAIL_BYTES = 8192


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines that are not blank; none where there is no such file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if line.strip()][-count:]
