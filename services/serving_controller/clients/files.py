"""Model files on this machine: fetched from S3, verified, under paths that never change their content."""

import asyncio
import shutil
from collections.abc import Callable, Container
from pathlib import Path
from uuid import uuid4

from services.serving_controller.model import Servable, is_candidate
from shared.clock import utc_now
from shared.model_files.adapters import check_adapter
from shared.model_files.models import read_base
from shared.model_files.tensors import shapes_of
from shared.storage.models import fetch_base_model, fetch_model
from shared.storage.objects import WriteOnceStore

NEW_SECONDS = 3600.0


class ModelFiles:
    def __init__(self, objects: WriteOnceStore, *, scratch: Path, bases: Path | None = None) -> None:
        """bases: folder of base models; None: in `scratch`."""
        self._objects = objects
        self._scratch = scratch.absolute()
        self._bases = (bases or scratch / "base-models").absolute()

    async def base(self, base_sha: str) -> Path:
        """The directory of a base model. Raises CorruptObject, StorageUnavailable, KeyError."""
        into = self._bases / base_sha
        if not into.is_dir():
            await fetch_base_model(self._objects, base_sha, into, draft=_draft_of(into))
        return into

    async def full(self, servable: Servable) -> Path:
        """The directory of a full model. Raises CorruptObject, StorageUnavailable, KeyError."""
        into = self._scratch / "models" / servable.digest
        if not into.is_dir():
            await fetch_model(self._objects, servable.digest, into, draft=_draft_of(into), kind="full")
        return into

    async def keep_only(self, *, bases: Container[str], models: Container[str]) -> None:
        """Delete the directories of all others, but not new ones: who needs them may not be written down yet."""
        for folder, kept in ((self._bases, bases), (self._scratch / "models", models)):
            await asyncio.to_thread(_keep_only, folder, kept)

    async def adapter(self, servable: Servable, below: Path) -> Path:
        """A fresh directory with the adapter's two files, checked before any loader sees them.

        Raises: BadModel, CorruptObject, StorageUnavailable, KeyError.
        """
        into = below / f"{servable.digest}-{uuid4().hex[:8]}"
        await fetch_model(self._objects, servable.digest, into, draft=_draft_of(into), kind="adapter")
        base = await self.base(servable.base_sha)
        await asyncio.to_thread(_check_adapter, into, base, servable.rank)
        return into


class LocalFiles:
    """ReplicaFiles of the replicas of this machine."""

    def __init__(self, files: ModelFiles, folder_of: Callable[[str], Path]) -> None:
        """folder_of: returns a replica's own folder."""
        self._files = files
        self._folder_of = folder_of

    async def model(self, replica_id: str, base_sha: str, full: Servable | None) -> Path | None:
        return await (self._files.full(full) if full else self._files.base(base_sha))

    async def adapter(self, replica_id: str, servable: Servable) -> Path | None:
        return await self._files.adapter(servable, self._adapters(replica_id, servable.served_name))

    async def remove_adapter(self, replica_id: str, served_name: str) -> None:
        digest = served_name.rpartition("@")[2]
        for path in self._adapters(replica_id, served_name).glob(f"{digest}-*"):
            await asyncio.to_thread(shutil.rmtree, path)

    async def keep_only(self, *, bases: Container[str], models: Container[str]) -> None:
        await self._files.keep_only(bases=bases, models=models)

    def _adapters(self, replica_id: str, served_name: str) -> Path:
        """Candidates apart: a slot may serve the same digest, and vLLM reads its files again when it must."""
        return self._folder_of(replica_id) / ("candidates" if is_candidate(served_name) else "adapters")


def _draft_of(into: Path) -> Path:
    return into.with_name(f".{into.name}.{uuid4().hex[:8]}")


def _check_adapter(directory: Path, base: Path, rank: int) -> None:
    check_adapter(directory, shapes_of(read_base(base)), rank=rank)


def _keep_only(folder: Path, kept: Container[str]) -> None:
    if not folder.is_dir():
        return
    for directory in folder.iterdir():
        is_old = utc_now().timestamp() - directory.stat().st_mtime > NEW_SECONDS
        if is_old and directory.name not in kept:
            shutil.rmtree(directory, ignore_errors=True)
