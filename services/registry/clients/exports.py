"""Export a model version: fetched, written and compared by a child process, then stored, manifest last."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil

from schemas import layout
from schemas.artifacts import ExportManifest
from schemas.exports import ExportActivity, ExportedFile, ParityReport
from services.registry.clients.child import TAIL_LINES, NoVerdict
from services.registry.decide import exports
from services.registry.export.order import (
    REPORT,
    WRITTEN,
    Compared,
    ExportOrder,
    ExportReport,
    Impossible,
    Worked,
)
from services.registry.model import BaseFacts, Distances, Export, Version
from shared.failpoints import failpoint
from shared.processes.orders import write_order
from shared.processes.tail import last_lines
from shared.processes.workers import ERRORS, carry_out
from shared.storage.models import fetch_base_model, fetch_model
from shared.storage.objects import ObjectStore, get_manifest, put_manifest, sha256_of

EXPORT = "services.registry.export"
CGROUP = Path("/sys/fs/cgroup")
Advance = Callable[[ExportActivity, int, int], None]
"""A function that is called with an activity, how much of it is done, and the total."""


@dataclass(frozen=True)
class ExportOutcome:
    """What became of an export: its files, or why there are none."""

    files: tuple[ExportedFile, ...] = ()
    parity: ParityReport | None = None
    code: str = ""
    """Why there are no files; empty where there are."""
    message: str = ""


class ModelExports:
    def __init__(
        self,
        objects: ObjectStore,
        *,
        scratch: Path,
        limit: timedelta,
        memory_bytes: int | None,
        threads: int | None,
    ) -> None:
        """memory_bytes: what a child may take; None: what the machine has available when it begins."""
        self._objects = objects
        self._scratch = scratch
        self._limit = limit
        self._memory_bytes = memory_bytes
        self._threads = threads

    async def export(
        self, version: Version, export: Export, base: BaseFacts, advance: Advance
    ) -> ExportOutcome:
        """Write, compare and store the files, unless a process before this one did.

        Raises: CorruptObject, StorageUnavailable, KeyError, NoVerdict (the child failed; another try may succeed).
        """
        key = layout.export(export.export_id)
        if await self._objects.head(key) is not None:
            manifest = await get_manifest(self._objects, key, ExportManifest)
            return ExportOutcome(manifest.files, manifest.parity)
        work_dir = self._scratch / export.export_id
        await asyncio.to_thread(_empty, work_dir)
        try:
            if why := self._why_no_room(version, export, base):
                return ExportOutcome(code="no_room", message=why)
            return await self._export(version, export, work_dir, advance)
        finally:
            await asyncio.to_thread(shutil.rmtree, work_dir, ignore_errors=True)

    async def delete(self, export_id: str) -> None:
        """Delete the files; the manifest goes first, so that what has one is whole. Raises StorageUnavailable."""
        await self._objects.delete([layout.export(export_id)])
        heads = await self._objects.list_objects(layout.exports(export_id))
        await self._objects.delete([head.key for head in heads])

    def _why_no_room(self, version: Version, export: Export, base: BaseFacts) -> str:
        return exports.why_no_room(
            needed_bytes=exports.needed_memory(base, export.format),
            available_bytes=self._memory(),
            needed_disk_bytes=exports.needed_disk(base, version.kind, export.estimated_bytes),
            available_disk_bytes=shutil.disk_usage(self._scratch).free,
        )

    def _memory(self) -> int:
        return self._memory_bytes or available_memory()

    async def _export(
        self, version: Version, export: Export, work_dir: Path, advance: Advance
    ) -> ExportOutcome:
        advance("fetching", 0, 0)
        order = await self._fetch(version, export, work_dir)
        reports = await self._carry_out(order, work_dir, advance)
        match reports[-1]:
            case Impossible(code=code, message=message):
                return ExportOutcome(code=code, message=message)
            case Compared(distances=distances):
                return await self._store(version, export, work_dir / WRITTEN, distances, advance)
            case last:
                raise NoVerdict(f"{EXPORT} ended after {last.event}")

    async def _fetch(self, version: Version, export: Export, work_dir: Path) -> ExportOrder:
        base, model = work_dir / "base", work_dir / "model"
        await fetch_base_model(self._objects, version.base_sha, base, draft=work_dir / "draft")
        await fetch_model(self._objects, version.digest, model, draft=work_dir / "draft", kind=version.kind)
        return ExportOrder(
            base=base.absolute(),
            model=model.absolute(),
            kind=version.kind,
            rank=version.rank,
            format=export.format,
            quantization=export.quantization,
            name=version.full_name,
            memory_bytes=self._memory(),
        )

    async def _carry_out(self, order: ExportOrder, work_dir: Path, advance: Advance) -> list[ExportReport]:
        reports: list[ExportReport] = []

        def take(report: ExportReport) -> None:
            reports.append(report)
            if isinstance(report, Worked):
                failpoint("registry.export.worked")
                advance(report.activity, report.done, report.total)

        threads = {"OMP_NUM_THREADS": str(self._threads)} if self._threads else {}
        code = await carry_out(
            EXPORT,
            write_order(work_dir, order),
            work_dir=work_dir,
            inputs=[],
            messages=REPORT,
            on_message=take,
            environment=threads,
            limit=self._limit,
        )
        if code != 0 or not reports:
            tail = "\n".join(last_lines(work_dir / ERRORS, TAIL_LINES))
            raise NoVerdict(f"{EXPORT} ended with code {code}: {tail}")
        return reports

    async def _store(
        self, version: Version, export: Export, written: Path, distances: Distances, advance: Advance
    ) -> ExportOutcome:
        """Store the files, each under its content, where they are near enough to the trained model."""
        parity = exports.judge(distances, export.format, export.quantization)
        if not parity.passed:
            return ExportOutcome(parity=parity, code="parity", message=exports.why_not_near(parity))
        paths = sorted(written.iterdir())
        total, done, files = sum(path.stat().st_size for path in paths), 0, []
        for path in paths:
            advance("storing", done, total)
            size, sha256 = path.stat().st_size, await asyncio.to_thread(sha256_of, path)
            await self._objects.put_file(
                layout.export(export.export_id, layout.part(sha256)), path, sha256=sha256
            )
            files.append(ExportedFile(path=path.name, size_bytes=size, sha256=sha256))
            done += size
        manifest = ExportManifest(digest=version.digest, files=tuple(files), parity=parity)
        await put_manifest(self._objects, layout.export(export.export_id), manifest)
        return ExportOutcome(manifest.files, parity)


def available_memory() -> int:
    """Return the bytes of memory that a new process could take here; in a container, what its limit leaves."""
    available: int = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # no control group, or one without a limit, which is `max`
        limit = int((CGROUP / "memory.max").read_text())
        available = min(available, limit - int((CGROUP / "memory.current").read_text()))
    return max(0, available)


def _empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
