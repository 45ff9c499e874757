"""Models and files from S3, kept on this machine between evaluations."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from schemas import layout
from schemas.artifacts import BaseModelManifest, FileEntry, ModelManifest, files_digest
from schemas.base import FileRef
from services.evaluator.decide.items import Asked, asked_of
from shared.errors import CorruptObject, Rejected
from shared.storage.objects import ObjectStore, fetch_files, get_manifest

CLOCK_SECONDS = 1.0
"""A file's times may be behind the clock by less."""
KINDS = ("base-models", "models", "blobs", "drafts", "work")


class Cache:
    """Entries are whole: they appear under their name once every byte of them was verified."""

    def __init__(self, objects: ObjectStore, root: Path, *, max_bytes: int) -> None:
        self._objects = objects
        self._root = root
        self._max_bytes = max_bytes
        self._begun: list[float] = []
        self._trimming = asyncio.Lock()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """What is taken or written within stays there until the end."""
        begun = time.time() - CLOCK_SECONDS
        self._begun.append(begun)
        try:
            yield
        finally:
            self._begun.remove(begun)

    async def base_model(self, sha: str) -> Path:
        """Directory with the files of a base model."""
        manifest = await get_manifest(self._objects, layout.base_model(sha), BaseModelManifest)
        return await self._directory(
            "base-models", sha, manifest.files, lambda path: layout.base_model(sha, layout.file(path))
        )

    async def model(self, digest: str) -> Path:
        """Directory with the files of a model version."""
        manifest = await get_manifest(self._objects, layout.model(digest), ModelManifest)
        return await self._directory(
            "models", digest, manifest.files, lambda path: layout.model(digest, layout.file(path))
        )

    async def blob(self, file: FileRef) -> Path:
        """Raises Rejected where the file was deleted."""
        target = self._root / "blobs" / file.sha256
        if target.exists():
            os.utime(target)
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        key = layout.blob(file.sha256)
        try:
            await self._objects.get_file(key, target, sha256=file.sha256, size_bytes=file.size_bytes)
        except KeyError as error:
            message = f"file {file.file_id} was not uploaded or was deleted: {key} does not exist"
            raise Rejected(message) from error
        return target

    def work_dir(self, name: str) -> Path:
        """As an earlier try left it."""
        path = self._root / "work" / name
        path.mkdir(parents=True, exist_ok=True)
        os.utime(path)
        return path

    async def trim(self) -> None:
        """Delete the longest unused entries until the rest fits."""
        async with self._trimming:
            await asyncio.to_thread(self._trim, min(self._begun, default=float("inf")))

    async def _directory(
        self, kind: str, digest: str, files: Sequence[FileEntry], key_of: Callable[[str], str]
    ) -> Path:
        if files_digest(tuple(files)) != digest:
            raise CorruptObject(
                f"{kind}/{digest}: its manifest names files with digest {files_digest(tuple(files))}"
            )
        target = self._root / kind / digest
        if not target.exists():
            await self._fetch(target, files, key_of)
        os.utime(target)
        return target

    async def _fetch(self, target: Path, files: Sequence[FileEntry], key_of: Callable[[str], str]) -> None:
        draft = self._root / "drafts" / uuid4().hex
        draft.mkdir(parents=True)
        try:
            await fetch_files(self._objects, key_of, files, draft)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():  # another evaluation may have fetched it meanwhile
                draft.replace(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _trim(self, in_use_since: float) -> None:
        entries = [entry for kind in KINDS for entry in (self._root / kind).glob("*")]
        total = 0
        for changed_at, entry in sorted(((_changed_at(entry), entry) for entry in entries), reverse=True):
            total += _size(entry)
            if total > self._max_bytes and changed_at < in_use_since:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def count_lines(path: Path) -> int:
    """Those with something in them."""
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def asked_in(path: Path) -> dict[int, Asked]:
    """What each line of a holdout, suite or benchmark file asks; the file was read through before."""
    with path.open("rb") as file:
        return {line: asked_of(json.loads(raw)) for line, raw in enumerate(file, 1) if raw.strip()}


def _changed_at(entry: Path) -> float:
    """Now, for what an evaluation has just put in place or taken away."""
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _size(entry: Path) -> int:
    try:
        files = entry.rglob("*") if entry.is_dir() else [entry]
        return sum(path.stat().st_size for path in files if path.is_file())
    except FileNotFoundError:  # taken away by the evaluation that it belongs to
        return 0
