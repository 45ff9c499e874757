"""What a child needs, from S3 to this machine, every byte verified; then its order."""

import asyncio
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from schemas import layout
from schemas.artifacts import BundleManifest, DatasetManifest, FileEntry
from schemas.base import BundleRef, DatasetRef, StartFrom
from schemas.training import StartTraining
from services.trainer_agent.protocol import TrainingOrder
from services.trainer_agent.runner.features import fetch_reference, needs_start
from services.trainer_agent.runner.storing import is_storage_away
from shared.errors import CorruptObject
from shared.log import get_logger
from shared.retry import RetryPolicy, retry_until_available
from shared.storage.models import fetch_base_model, fetch_model
from shared.storage.objects import WriteOnceStore, fetch_files, get_manifest

log = get_logger(__name__)

Result = TypeVar("Result")


class Inputs:
    def __init__(
        self, objects: WriteOnceStore, *, work_dir: Path, cache_dir: Path, retry_policy: RetryPolicy
    ) -> None:
        self._objects = objects
        self._work_dir = work_dir
        self._cache_dir = cache_dir
        self._retry_policy = retry_policy

    async def fetch(self, start: StartTraining) -> TrainingOrder:
        """Fetch all inputs. Raises StorageUnavailable after all retries; CorruptObject, KeyError at once."""
        base_dir, dataset_dir, resume_dir = await asyncio.gather(
            self._through_outages(lambda: self._base_model(start.base_sha)),
            self._through_outages(lambda: self._dataset(start.dataset)),
            self._through_outages(lambda: self._bundle(start.job_id, start.resume)),
        )
        order = TrainingOrder(
            job_id=start.job_id,
            attempt=start.attempt,
            recipe=start.recipe,
            base_dir=base_dir,
            dataset_dir=dataset_dir,
            resume_dir=resume_dir,
            started_from=start.start_from.identity if start.start_from else None,
            base_sha=start.base_sha,
            dataset_version=start.dataset.version,
            config_hash=start.config_hash,
            nodes=start.nodes,
            devices_per_node=start.devices_per_node,
            device=start.device,
        )
        into = self._fresh("reference")
        reference = await self._through_outages(lambda: fetch_reference(self._objects, order, into))
        is_needed = needs_start(
            start.recipe, is_resumed=start.resume is not None, has_reference=reference.path is not None
        )
        start_from = start.start_from if is_needed else None
        start_dir = await self._through_outages(lambda: self._start(start_from, start))
        return order.model_copy(
            update={
                "reference": reference.path,
                "reference_number": reference.next_number,
                "start_dir": start_dir,
            }
        )

    async def _through_outages(self, call: Callable[[], Awaitable[Result]]) -> Result:
        return await retry_until_available(call, is_away=is_storage_away, retry_policy=self._retry_policy)

    async def _base_model(self, sha: str) -> Path:
        """Fetch the base model into the machine's cache, whole or not at all. Nodes of one machine fetch it once."""
        models = self._cache_dir / "base-models"
        models.mkdir(parents=True, exist_ok=True)
        async with _locked(models / f"{sha}.lock"):
            if not (models / sha).exists():
                await fetch_base_model(self._objects, sha, models / sha, draft=models / f"{sha}.partial")
        return models / sha

    async def _dataset(self, ref: DatasetRef) -> Path:
        into = self._fresh("dataset")
        key = layout.dataset(ref.version)
        data = await self._objects.get_bytes(key, sha256=ref.manifest_sha256)
        manifest = DatasetManifest.model_validate_json(data)
        parts = (*manifest.training, *manifest.validation)
        await fetch_files(self._objects, lambda path: layout.dataset(ref.version, path), parts, into)
        (into / layout.MANIFEST).write_bytes(data)
        return into

    async def _bundle(self, job_id: str, ref: BundleRef | None) -> Path | None:
        if ref is None:
            return None
        into = self._fresh("resume")
        job_id = ref.job_id or job_id
        data = await self._objects.get_bytes(
            layout.checkpoint(job_id, ref.attempt, ref.step), sha256=ref.manifest_sha256
        )
        parts = BundleManifest.model_validate_json(data).parts
        keys = part_keys(job_id, ref.attempt, ref.step, parts)
        await fetch_files(self._objects, keys.__getitem__, parts, into)
        (into / layout.MANIFEST).write_bytes(data)
        return into

    async def _start(self, ref: StartFrom | None, start: StartTraining) -> Path | None:
        """Fetch the files of the model that training starts from, in the form in which a model version has them."""
        if ref is None:
            return None
        folder = self._fresh("start")
        if ref.digest is not None:
            into, draft = folder / ref.digest, folder / "partial"
            await fetch_model(self._objects, ref.digest, into, draft=draft, kind=start.recipe.kind)
            return into
        key = layout.checkpoint(ref.job_id, ref.bundle.attempt, ref.bundle.step)
        try:
            sha256 = ref.bundle.manifest_sha256
            manifest = await get_manifest(self._objects, key, BundleManifest, sha256=sha256)
        except KeyError as error:
            raise CorruptObject(f"{ref.name}, which the job starts from, was deleted: {key}") from error
        if manifest.base_sha != start.base_sha:
            raise CorruptObject(f"{key}: found base model {manifest.base_sha}, expected {start.base_sha}")
        files = manifest.model_files
        keys = part_keys(ref.job_id, ref.bundle.attempt, ref.bundle.step, files)
        await fetch_files(self._objects, keys.__getitem__, files, folder)
        return folder

    def _fresh(self, name: str) -> Path:
        folder = self._work_dir / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


def best_before(order: TrainingOrder) -> BundleRef | None:
    """Return the bundle that the one to resume from names as the best; None where it names no other."""
    if order.resume_dir is None:
        return None
    manifest = BundleManifest.model_validate_json((order.resume_dir / layout.MANIFEST).read_bytes())
    return manifest.best and manifest.best.seen_from(manifest.job_id, order.job_id)


def part_keys(job_id: str, attempt: int, step: int, parts: Iterable[FileEntry]) -> dict[str, str]:
    """Return the key of each part by its path; keys are made of the parts' content."""
    return {part.path: layout.checkpoint(job_id, attempt, step, layout.part(part.sha256)) for part in parts}


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold the lock file among all processes of the machine, waiting without blocking the event loop."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        await asyncio.to_thread(fcntl.flock, handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
