"""Objects with write-once keys, sha256 and size verified in both directions; manifests and files of them."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.artifacts import FileEntry
from shared.errors import CorruptObject
from shared.failpoints import failpoint

MAX_BYTES_IN_MEMORY = 16 * 1024 * 1024
MULTIPART_BYTES = 64 * 1024 * 1024
"""Size above which a file is stored in parts of that size."""
CHUNK_BYTES = 1024 * 1024
PARALLEL_FETCHES = 4

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class ObjectHead:
    key: str
    size_bytes: int
    sha256: str | None
    """Digest from our own metadata; None in listings."""


class WriteOnceStore(Protocol):
    """A bucket to which objects are added, and of which none is taken.

    Methods raise StorageUnavailable, CorruptObject or Conflict, and KeyError if a key does not exist.
    """

    async def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        """Write once. An existing object with the same sha256 is success; any other raises Conflict."""

    async def put_bytes(self, key: str, data: bytes) -> str:
        """Write once and return the sha256 of the data."""

    async def get_file(self, key: str, path: Path, *, sha256: str, size_bytes: int) -> None:
        """Fetch to `path`, which appears only when size and sha256 are right."""

    async def get_bytes(
        self, key: str, *, sha256: str | None = None, limit_bytes: int = MAX_BYTES_IN_MEMORY
    ) -> bytes: ...

    async def verify(self, key: str, *, sha256: str, size_bytes: int) -> None:
        """Read the whole object. Raises CorruptObject unless size and sha256 are right."""

    async def head(self, key: str) -> ObjectHead | None: ...

    async def list_objects(self, prefix: str) -> list[ObjectHead]: ...


class ObjectStore(WriteOnceStore, Protocol):
    """A bucket with all that its owner may do."""

    async def delete(self, keys: Iterable[str]) -> None: ...

    async def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to before `stop`. Raises CorruptObject if the object has not as many."""

    async def copy(self, source: str, target: str, *, sha256: str) -> None:
        """Copy within the bucket; `target` is written once."""


async def put_manifest(objects: WriteOnceStore, key: str, manifest: BaseModel) -> str:
    """Write the manifest, after all of its files, and return its sha256."""
    failpoint("s3.manifest.before")
    digest = await objects.put_bytes(key, manifest_bytes(manifest))
    failpoint("s3.manifest.after")
    return digest


def manifest_bytes(manifest: BaseModel) -> bytes:
    return manifest.model_dump_json(indent=1).encode()


async def get_manifest(
    objects: WriteOnceStore, key: str, model: type[Model], *, sha256: str | None = None
) -> Model:
    """Read and parse a manifest. Raises CorruptObject if the object is no such manifest."""
    content = await objects.get_bytes(key, sha256=sha256)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise CorruptObject(f"{key} is no {model.__name__}: {error.errors()[0]['msg']}") from error


async def fetch_files(
    objects: WriteOnceStore, key_of: Callable[[str], str], files: Sequence[FileEntry], into: Path
) -> None:
    """Fetch files below `into` under their own paths, a few at a time, each verified.

    Once it has raised, it writes no more below `into`. Raises CorruptObject if a path leaves `into`.
    """
    limit = asyncio.Semaphore(PARALLEL_FETCHES)
    failed = asyncio.Event()

    async def fetch(entry: FileEntry) -> None:
        target = into / entry.path
        if not target.resolve().is_relative_to(into.resolve()):
            raise CorruptObject(f"manifest names {entry.path!r}, expected a path below its folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        async with limit:
            if failed.is_set():
                return
            try:
                await objects.get_file(
                    key_of(entry.path), target, sha256=entry.sha256, size_bytes=entry.size_bytes
                )
            except BaseException:
                failed.set()
                raise

    outcomes = await asyncio.gather(*(fetch(entry) for entry in files), return_exceptions=True)
    for error in filter(None, outcomes):
        raise error


def require_content(key: str, digest: str, num_bytes: int, *, sha256: str, size_bytes: int) -> None:
    """Raise CorruptObject unless the content that was read has this sha256 and size."""
    if (digest, num_bytes) != (sha256, size_bytes):
        content = f"{num_bytes} bytes with sha256 {digest}"
        raise CorruptObject(f"{key}: has {content}, expected {size_bytes} bytes with sha256 {sha256}")


def require_length(key: str, data: bytes, start: int, stop: int) -> bytes:
    """Return the bytes of a range. Raises CorruptObject if they are fewer."""
    if len(data) != stop - start:
        raise CorruptObject(f"{key}: found {len(data)} bytes from {start} on, expected {stop - start}")
    return data


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
