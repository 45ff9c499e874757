"""JSON files, folders and locks of a stack, and the checks of the disk they lie on."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.local.errors import MissingPart
from shared.files import write_whole

NEEDED_FREE_BYTES = 2 * 1024**3


def write_json(path: Path, content: Any) -> None:
    write_whole(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty where there is no such file."""
    if not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def folder(path: Path, *, mode: int = 0o700) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    return path


def require_free_space(path: Path, variable: str) -> None:
    free = shutil.disk_usage(path).free
    if free < NEEDED_FREE_BYTES:
        raise MissingPart(
            f"disk space: {free / 1024**3:.1f} GiB free at {path}, {NEEDED_FREE_BYTES / 1024**3:.0f} GiB "
            f"needed: free some, or set {variable} to a folder on another disk"
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, waiting for whoever has it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
