"""Bundles on their way to S3, behind the training's back: parts first, the manifest last.

Every node stores the parts of its own processes. The node of global rank 0 waits until all parts of all
nodes are there, then puts the manifest: from then on the bundle exists. A bundle that names another one as the best
is stored after it, so that whoever resumes from the one has the other.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from schemas import layout
from schemas.artifacts import FileEntry
from schemas.base import BestBundle, BundleRef
from schemas.training import BundleKind as ReportedKind
from schemas.training import BundleUploaded
from services.trainer_agent.protocol import BundleKind, Saved, TrainingOrder, bundle_manifest
from services.trainer_agent.runner.inputs import part_keys
from services.trainer_agent.runner.storing import until_stored
from shared.errors import Conflict, CorruptObject
from shared.log import get_logger
from shared.storage.objects import WriteOnceStore, put_manifest

log = get_logger(__name__)

PARALLEL_PUTS = 4
LOOK_SECONDS = 0.3
PATIENCE_SECONDS = 60.0
"""How long parts of another node are awaited with a newer bundle at hand: the node may have passed this one over."""
LAST_PATIENCE_SECONDS = 900.0
"""How long they are awaited without one, since the newest part came: their node may have ended before."""


@dataclass(frozen=True)
class Identity:
    job_id: str
    tenant: str
    attempt: int
    node_index: int

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "tenant": self.tenant,
            "attempt": self.attempt,
            "node_index": self.node_index,
        }


class Uploader:
    """Stores one bundle at a time. Only the newest periodic one waits; a last one waits for the best one alone."""

    def __init__(
        self,
        objects: WriteOnceStore,
        order: TrainingOrder,
        runner_identity: Identity,
        *,
        resume: BundleRef | None,
        best: BundleRef | None = None,
        report: Callable[[BundleUploaded], None],
    ) -> None:
        self._objects = objects
        self._order = order
        self._runner_identity = runner_identity
        self._resume = resume
        self._report = report
        self._best: Saved | None = None
        """Newest bundle that was the best when it was written."""
        self._put_steps: set[int] = set()
        """Steps of bundles whose parts of this node are stored, and on node 0 their manifest."""
        self._queued: Saved | None = None
        self._current: Saved | None = None
        self._task: asyncio.Task[None] | None = None
        self._stored = {ref.step: ref for ref in (resume, best) if ref is not None}
        self.last: BundleRef | None = None
        """Emergency or final bundle, once it is stored or turns out to be stored already."""

    def offer(self, saved: Saved) -> None:
        if saved.best is not None and saved.best.step == saved.step:
            self._best = saved
        if saved.reused:
            self.last = self._resume
        elif saved.bundle is BundleKind.PERIODIC:
            self._queue(saved)
        elif saved.step in self._put_steps and saved.step in self._stored:
            self.last = self._stored[saved.step]
        else:
            self._begin(saved)

    async def finish(self) -> None:
        """Return when nothing is on its way any more."""
        while self._task is not None:
            await asyncio.wait({self._task})
            self._take_next()

    async def abort(self) -> None:
        self._queued = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    def _queue(self, saved: Saved) -> None:
        if self._queued is not None:
            log.info("bundle superseded before it was stored", step=self._queued.step, by=saved.step)
        self._queued = saved
        self._take_next()

    def _take_next(self) -> None:
        if self._task is not None and not self._task.done():
            return
        saved, self._queued, self._task = self._queued, None, None
        if saved is not None:
            self._begin(saved)

    def _begin(self, saved: Saved) -> None:
        """Start to store a bundle at once; what is on its way would only make this one late."""
        if self._task is not None and not self._task.done():
            log.info("upload aborted", step=self._current and self._current.step, by=saved.step)
            self._task.cancel()
        self._queued, self._current = None, saved
        self._task = asyncio.create_task(self._store_all(saved, best=self._best))
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            log.error("upload failed", exc_info=error)
        self._take_next()

    async def _store_all(self, saved: Saved, *, best: Saved | None) -> None:
        """Store the bundle, after the one that it names as the best, where that one is not stored yet."""
        try:
            if best is not None and saved.best is not None and saved.best.step == best.step != saved.step:
                await self._store(best)
            await self._store(saved)
        except (Conflict, CorruptObject, OSError, _PassedOver) as error:
            log.exception("bundle not stored", step=saved.step, error=type(error).__name__)
        else:
            await asyncio.to_thread(_remove_older, saved)

    async def _store(self, saved: Saved) -> None:
        if saved.step in self._put_steps:
            return
        await self._put_own_parts(saved)
        if self._runner_identity.node_index == 0:
            await self._complete(saved)
        self._put_steps.add(saved.step)

    async def _put_own_parts(self, saved: Saved) -> None:
        limit = asyncio.Semaphore(PARALLEL_PUTS)
        keys = self._keys(saved, saved.parts)

        async def put(part: FileEntry) -> None:
            async with limit:
                await until_stored(
                    lambda: self._objects.put_file(
                        keys[part.path], saved.directory / part.path, sha256=part.sha256
                    )
                )

        await asyncio.gather(*(put(part) for part in saved.parts))

    async def _complete(self, saved: Saved) -> None:
        await self._others_have_put_theirs(saved)
        best = self._best_of(saved)
        manifest = bundle_manifest(self._order, saved, best=best)
        key = layout.checkpoint(self._runner_identity.job_id, self._runner_identity.attempt, saved.step)
        digest = await until_stored(lambda: put_manifest(self._objects, key, manifest))
        ref = BundleRef(attempt=self._runner_identity.attempt, step=saved.step, manifest_sha256=digest)
        self._stored[saved.step] = ref
        if saved.bundle is not BundleKind.PERIODIC:
            self.last = ref
        kind = ReportedKind(saved.bundle)
        self._report(
            BundleUploaded(
                **self._runner_identity.fields,
                bundle=ref,
                kind=kind,
                metrics=saved.metrics.by_name,
                best=saved.best and BestBundle(bundle=best or ref, valid_loss=saved.best.valid_loss),
            )
        )

    def _best_of(self, saved: Saved) -> BundleRef | None:
        """Return the earlier bundle that this one names as the best, which this attempt stored or began with."""
        if saved.best is None or saved.best.step == saved.step:
            return None
        return self._stored[saved.best.step]

    async def _others_have_put_theirs(self, saved: Saved) -> None:
        own = {part.path for part in saved.parts}
        missing = [part for part in saved.all_parts if part.path not in own]
        keys = self._keys(saved, missing)
        began = came_at = time.monotonic()
        for part in missing:
            while not await self._is_there(keys[part.path], part):
                now = time.monotonic()
                is_passed_over = self._queued is not None and now > began + PATIENCE_SECONDS
                if is_passed_over or now > came_at + LAST_PATIENCE_SECONDS:
                    raise _PassedOver(f"{part.path} of another node did not come")
                await asyncio.sleep(LOOK_SECONDS)
            came_at = time.monotonic()

    async def _is_there(self, key: str, part: FileEntry) -> bool:
        stored_object = await until_stored(lambda: self._objects.head(key))
        return stored_object is not None and stored_object.size_bytes == part.size_bytes

    def _keys(self, saved: Saved, parts: Iterable[FileEntry]) -> dict[str, str]:
        return part_keys(self._runner_identity.job_id, self._runner_identity.attempt, saved.step, parts)


class _PassedOver(Exception):
    """Another node dropped its part of a bundle for a newer one, or ended without storing it."""


def _remove_older(saved: Saved) -> None:
    """Free the disk. The newest bundle's folder stays: a last bundle of the same step is written into it."""
    for folder in saved.directory.parent.iterdir():
        if folder.name.isdigit() and int(folder.name) < int(saved.directory.name):
            shutil.rmtree(folder, ignore_errors=True)
