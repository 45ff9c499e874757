"""Model files on this machine: fetched from S3, verified, under paths that never change their content."""

import asyncio
import shutil
from collections.abc import Container
from pathlib import Path
from uuid import uuid4

from services.serving_controller.model import Servable
from shared.clock import utc_now
from shared.model_files.adapters import check_adapter
from shared.model_files.models import read_base
from shared.model_files.tensors import shapes_of
from shared.storage.models import fetch_base_model, fetch_model
from shared.storage.objects import ObjectStore

NEW_SECONDS = 3600.0


class ModelFiles:
    def __init__(self, objects: ObjectStore, *, scratch: Path) -> None:
        self._objects = objects
        self._scratch = scratch.absolute()

    async def base(self, base_sha: str) -> Path:
        """The directory of a base model. Raises CorruptObject, StorageUnavailable, KeyError."""
        into = self._scratch / "base-models" / base_sha
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
        for folder, kept in (("base-models", bases), ("models", models)):
            await asyncio.to_thread(_keep_only, self._scratch / folder, kept)

    async def adapter(self, servable: Servable, below: Path) -> Path:
        """A fresh directory with the adapter's two files, checked before any loader sees them.

        Raises: BadModel, CorruptObject, StorageUnavailable, KeyError.
        """
        into = below / f"{servable.digest}-{uuid4().hex[:8]}"
        await fetch_model(self._objects, servable.digest, into, draft=_draft_of(into), kind="adapter")
        base = await self.base(servable.base_sha)
        await asyncio.to_thread(_check_adapter, into, base, servable.rank)
        return into


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
