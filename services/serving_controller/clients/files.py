"""Model files on this machine: fetched from S3, verified, under paths that never change their content."""

import asyncio
import shutil
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError, safe_open

from schemas import layout
from schemas.artifacts import BaseModelManifest, FileEntry, ModelManifest, files_digest
from services.serving_controller.model import Servable
from shared.clock import utc_now
from shared.errors import CorruptObject
from shared.storage.objects import ObjectStore, fetch_files, get_manifest

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
MAX_HEADER_BYTES = 1024 * 1024
MAX_TENSORS = 5_000
NEW_SECONDS = 3600.0


class ModelFiles:
    def __init__(self, objects: ObjectStore, *, scratch: Path) -> None:
        self._objects = objects
        self._scratch = scratch.absolute()

    async def base(self, base_sha: str) -> Path:
        """The directory of a base model. Raises CorruptObject, StorageUnavailable, KeyError."""
        into = self._scratch / "base-models" / base_sha
        if not into.is_dir():
            manifest = await get_manifest(self._objects, layout.base_model(base_sha), BaseModelManifest)
            _require_digest(manifest.files, base_sha)
            await self._fetch(
                lambda path: layout.base_model(base_sha, layout.file(path)), manifest.files, into
            )
        return into

    async def full(self, servable: Servable) -> Path:
        """The directory of a full model. Raises CorruptObject, StorageUnavailable, KeyError."""
        into = self._scratch / "models" / servable.digest
        if not into.is_dir():
            await self._fetch_model(servable, into)
        return into

    async def keep_only(self, *, bases: Container[str], models: Container[str]) -> None:
        """Delete the directories of all others, but not new ones: who needs them may not be written down yet."""
        for folder, kept in (("base-models", bases), ("models", models)):
            await asyncio.to_thread(_keep_only, self._scratch / folder, kept)

    async def adapter(self, servable: Servable, below: Path) -> Path:
        """A fresh directory with the adapter's two files, their headers checked before any loader sees them.

        Raises: CorruptObject, StorageUnavailable, KeyError.
        """
        into = below / f"{servable.digest}-{uuid4().hex[:8]}"
        await self._fetch_model(servable, into)
        await asyncio.to_thread(require_adapter, into)
        return into

    async def _fetch_model(self, servable: Servable, into: Path) -> None:
        manifest = await get_manifest(self._objects, layout.model(servable.digest), ModelManifest)
        _require_digest(manifest.files, servable.digest)
        if manifest.kind != servable.kind:
            raise CorruptObject(f"{into.name}: found kind {manifest.kind}, expected {servable.kind}")
        await self._fetch(lambda path: layout.model(servable.digest, layout.file(path)), manifest.files, into)

    async def _fetch(self, key_of: Callable[[str], str], files: Sequence[FileEntry], into: Path) -> None:
        """All files or no directory."""
        draft = into.with_name(f".{into.name}.{uuid4().hex[:8]}")
        draft.mkdir(parents=True)
        try:
            await fetch_files(self._objects, key_of, files, draft)
            draft.rename(into)
        finally:
            await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)


def _keep_only(folder: Path, kept: Container[str]) -> None:
    if not folder.is_dir():
        return
    for directory in folder.iterdir():
        is_old = utc_now().timestamp() - directory.stat().st_mtime > NEW_SECONDS
        if is_old and directory.name not in kept:
            shutil.rmtree(directory, ignore_errors=True)


def require_adapter(directory: Path) -> None:
    """Raises CorruptObject unless the directory holds just an adapter with a small, sound header."""
    names = sorted(path.name for path in directory.iterdir())
    if names != list(ADAPTER_FILES):
        raise CorruptObject(f"adapter has {', '.join(names)}, expected exactly {' and '.join(ADAPTER_FILES)}")
    weights = directory / ADAPTER_FILES[1]
    with weights.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise CorruptObject(
            f"{weights.name}: header of {header_bytes} bytes, at most {MAX_HEADER_BYTES} are read"
        )
    try:
        with safe_open(weights, framework="numpy") as opened:
            tensors = len(opened.keys())
    except SafetensorError as error:
        raise CorruptObject(f"{weights.name}: {error}") from error
    if tensors > MAX_TENSORS:
        raise CorruptObject(f"{weights.name}: {tensors} tensors, expected at most {MAX_TENSORS}")


def _require_digest(files: tuple[FileEntry, ...], expected: str) -> None:
    if (digest := files_digest(files)) != expected:
        raise CorruptObject(f"manifest names files of digest {digest}, expected {expected}")
