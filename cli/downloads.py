"""Files that are fetched over HTTP: continued where a download was cut off, and there only with the right sha256."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from cli.api import Api
from ops.errors import RefusedByPlatform

CHUNK_BYTES = 1024 * 1024
Advance = Callable[[int], None]
"""A function that is called with the number of bytes that have come since the last call."""


def fetch(api: Api, path: str, target: Path, *, size_bytes: int, sha256: str, advance: Advance) -> None:
    """Fetch a file to `target`, unless it is there. What has come of it lies in `<target>.part`.

    Raises RefusedByPlatform where its bytes have another sha256, and Unreachable where the line is lost.
    """
    if target.is_file() and target.stat().st_size == size_bytes and _sha256(target) == sha256:
        advance(size_bytes)
        return
    partial = target.with_name(f"{target.name}.part")
    done = partial.stat().st_size if partial.is_file() else 0
    if done > size_bytes:
        partial.unlink()
        done = 0
    advance(done)
    if done < size_bytes:
        headers = {"range": f"bytes={done}-", "if-range": f'"{sha256}"'} if done else {}
        api.stream(path, headers, lambda answer: _append(answer, partial, done, advance))
    elif not size_bytes:
        partial.touch()
    if (digest := _sha256(partial)) != sha256:
        partial.unlink()
        raise RefusedByPlatform(
            f"{target.name}: found sha256 {digest}, expected {sha256}; it was deleted here"
        )
    partial.replace(target)


def _append(answer: httpx.Response, partial: Path, done: int, advance: Advance) -> None:
    """Write what comes behind what is there, or from the beginning where the platform sends all of it."""
    is_rest = answer.status_code == httpx.codes.PARTIAL_CONTENT
    if not is_rest:
        advance(-done)
    with partial.open("ab" if is_rest else "wb") as file:
        for chunk in answer.iter_bytes(CHUNK_BYTES):
            file.write(chunk)
            advance(len(chunk))


def require_plain_names(files: list[dict[str, Any]]) -> None:
    """Raise RefusedByPlatform where a file's name would leave its folder."""
    for file in files:
        if Path(file["path"]).name != file["path"]:
            raise RefusedByPlatform(f"file {file['path']!r}: expected a name without a folder")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
