"""Models from the object store in directories of this machine, each whole or not there."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from schemas import layout
from schemas.artifacts import BaseModelManifest, FileEntry, ModelManifest, files_digest
from shared.errors import CorruptObject
from shared.storage.objects import WriteOnceStore, fetch_files, get_manifest


async def fetch_base_model(objects: WriteOnceStore, base_sha: str, into: Path, *, draft: Path) -> None:
    """Fetch a base model's verified files by way of `draft`, on the same file system.

    Raises: CorruptObject, StorageUnavailable, KeyError.
    """
    manifest = await get_manifest(objects, layout.base_model(base_sha), BaseModelManifest)

    def key_of(path: str) -> str:
        return layout.base_model(base_sha, layout.file(path))

    await _fetch(objects, key_of, manifest.files, into, digest=base_sha, draft=draft)


async def fetch_model(
    objects: WriteOnceStore,
    digest: str,
    into: Path,
    *,
    draft: Path,
    kind: Literal["adapter", "full"] | None = None,
) -> None:
    """Fetch a model version's verified files by way of `draft`, on the same file system.

    Raises: CorruptObject, also where it is of another kind; StorageUnavailable, KeyError.
    """
    manifest = await get_manifest(objects, layout.model(digest), ModelManifest)
    if kind not in (None, manifest.kind):
        raise CorruptObject(f"{layout.model(digest)}: found kind {manifest.kind}, expected {kind}")

    def key_of(path: str) -> str:
        return layout.model(digest, layout.file(path))

    await _fetch(objects, key_of, manifest.files, into, digest=digest, draft=draft)


async def _fetch(
    objects: WriteOnceStore,
    key_of: Callable[[str], str],
    files: Sequence[FileEntry],
    into: Path,
    *,
    digest: str,
    draft: Path,
) -> None:
    if (actual := files_digest(tuple(files))) != digest:
        raise CorruptObject(f"manifest of {into.name} names files of digest {actual}, expected {digest}")
    await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        await fetch_files(objects, key_of, files, draft)
        into.parent.mkdir(parents=True, exist_ok=True)
        if not into.exists():  # another task may have fetched it meanwhile
            draft.rename(into)
    finally:
        await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
