"""Models and files from S3, kept on this machine between evaluations."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from schemas import layout
from schemas.base import FileRef
from services.evaluator.clients.unpack import unpack
from services.evaluator.decide.items import Asked, asked_of
from services.evaluator.scoring.order import AnyPart, WorkOrder
from services.evaluator.scoring.rows import read_tasks, reader_of
from shared.errors import Rejected
from shared.row_files import is_parquet
from shared.storage.models import fetch_base_model, fetch_model
from shared.storage.objects import WriteOnceStore

CLOCK_SECONDS = 1.0
"""Seconds by which a file's times may be behind the clock, at most."""
KINDS = ("base-models", "models", "blobs", "drafts", "work")


class Cache:
    """Entries are whole: they appear under their name once every byte of them was verified."""

    def __init__(
        self, objects: WriteOnceStore, root: Path, *, max_bytes: int, bases: Path | None = None
    ) -> None:
        """bases: folder of base models, which others share; None: in `root`."""
        self._objects = objects
        self._root = root
        self._bases = bases or root / "base-models"
        self._max_bytes = max_bytes
        self._begun: list[float] = []
        self._trimming = asyncio.Lock()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep what is taken or written within until the end."""
        begun = time.time() - CLOCK_SECONDS
        self._begun.append(begun)
        try:
            yield
        finally:
            self._begun.remove(begun)

    async def base_model(self, sha: str) -> Path:
        """Return the directory with the files of a base model."""
        target = self._bases / sha
        if not target.exists():
            # Beside its place: a file system of its own may hold the base models.
            await fetch_base_model(
                self._objects, sha, target, draft=target.with_name(f".{sha}.{uuid4().hex}")
            )
        os.utime(target)
        return target

    async def model(self, digest: str) -> Path:
        """Return the directory with the files of a model version."""
        target = self._root / "models" / digest
        if not target.exists():
            await fetch_model(self._objects, digest, target, draft=self._draft())
        os.utime(target)
        return target

    async def blob(self, file: FileRef) -> Path:
        """Return the path of an uploaded file as JSON lines.

        Raises Rejected where it is not in the store, or is Parquet that cannot be read.
        """
        target = self._root / "blobs" / file.sha256
        if target.exists():
            os.utime(target)
            return target
        key, draft = layout.blob(file.sha256), self._draft()
        for path in (target, draft):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            await self._objects.get_file(key, draft, sha256=file.sha256, size_bytes=file.size_bytes)
            if not is_parquet(draft):
                draft.replace(target)
            elif problem := await unpack(draft, target):
                raise Rejected(f"file {file.file_id} {problem}")
        except KeyError as error:
            message = f"file {file.file_id} was not uploaded or was deleted: {key} does not exist"
            raise Rejected(message) from error
        finally:
            draft.unlink(missing_ok=True)
        return target

    async def place(self, order: WorkOrder, files: Iterable[FileRef]) -> WorkOrder:
        """Fetch what an order names by keys in S3, with these files of rows; return it with the paths here."""
        paths = {
            order.base_path: await self.base_model(Path(order.base_path).name),
            order.candidate.path: await self.model(Path(order.candidate.path).name),
        }
        return order.at(paths | await self.blobs(files))

    async def blobs(self, files: Iterable[FileRef]) -> dict[str, Path]:
        """Return the paths of uploaded files by their keys in S3."""
        return {layout.blob(file.sha256): await self.blob(file) for file in files}

    def work_dir(self, name: str) -> Path:
        """Return a work directory, with what an earlier try left in it."""
        path = self._root / "work" / name
        path.mkdir(parents=True, exist_ok=True)
        os.utime(path)
        return path

    async def trim(self) -> None:
        """Delete the longest unused entries until the rest fits."""
        async with self._trimming:
            await asyncio.to_thread(self._trim, min(self._begun, default=float("inf")))

    def _draft(self) -> Path:
        return self._root / "drafts" / uuid4().hex

    def _trim(self, in_use_since: float) -> None:
        entries = [entry for kind in KINDS for entry in (self._root / kind).glob("*")]
        total = 0
        for changed_at, entry in sorted(((_changed_at(entry), entry) for entry in entries), reverse=True):
            total += _size(entry)
            if total > self._max_bytes and changed_at < in_use_since:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def count_lines(path: Path) -> int:
    """Count the lines with something in them."""
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def keys_in(parts: Iterable[AnyPart], paths: Mapping[str, Path]) -> dict[str, list[str]]:
    """Return the keys of each part's rows, by its name; `paths` is by keys in S3."""
    return {part.name: [row.key for row in reader_of(part)(paths[part.path])] for part in parts}


def asked_in(path: Path) -> dict[int, Asked]:
    """Return what each line of a holdout, suite or benchmark file asks; the file was read through before."""
    with path.open("rb") as file:
        return {line: asked_of(json.loads(raw)) for line, raw in enumerate(file, 1) if raw.strip()}


def references_in(holdout: Path | None) -> tuple[str, ...]:
    """Return the right answers of a holdout's rows; none where there is no holdout."""
    return () if holdout is None else tuple(row.reference for row in read_tasks(holdout))


def _changed_at(entry: Path) -> float:
    """Return when an entry last changed: now, where an evaluation has just put it in place or taken it away."""
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
