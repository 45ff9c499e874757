"""Copy what a job trained from its checkpoint bundle to `models/<digest>`, verified, manifest last."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

from schemas import layout
from schemas.artifacts import BaseModelManifest, BundleManifest, FileEntry, ModelManifest, files_digest
from schemas.job import Artifact
from shared.errors import CorruptObject
from shared.model_files.adapters import check_adapter
from shared.model_files.models import check_full
from shared.model_files.tensors import BadModel, Shapes, require_finite
from shared.storage.objects import ObjectStore, fetch_files, get_manifest, put_manifest


class ArtifactCopies:
    def __init__(self, objects: ObjectStore, *, scratch: Path) -> None:
        self._objects = objects
        self._scratch = scratch

    async def copy(self, artifact: Artifact, shapes: Shapes | None) -> str:
        """Copy the model's files to `models/<digest>` and return the digest. `shapes`: of the base model's tensors.

        Raises: BadModel, CorruptObject, StorageUnavailable, KeyError (a part is missing).
        """
        if shapes is None:
            raise BadModel(
                f"base model {artifact.base_model} with sha {artifact.base_sha} was never registered"
            )
        files = (await self._bundle(artifact)).model_files
        self._scratch.mkdir(parents=True, exist_ok=True)
        into = Path(mkdtemp(dir=self._scratch, prefix="model-"))
        try:
            await self._fetch(artifact, files, into)
            await self._check(artifact, into, shapes)
            return await self._store(artifact, files, into)
        finally:
            await asyncio.to_thread(shutil.rmtree, into)

    async def _bundle(self, artifact: Artifact) -> BundleManifest:
        bundle, written_by = artifact.bundle, artifact.bundle.job_id or artifact.job_id
        key = layout.checkpoint(written_by, bundle.attempt, bundle.step)
        manifest = await get_manifest(self._objects, key, BundleManifest, sha256=bundle.manifest_sha256)
        identity = (manifest.job_id, manifest.base_sha, manifest.dataset_version, manifest.config_hash)
        expected = (written_by, artifact.base_sha, artifact.dataset.version, artifact.config_hash)
        if identity != expected:
            raise BadModel(f"{key} is about {identity}, expected {expected}")
        return manifest

    async def _fetch(self, artifact: Artifact, files: Sequence[FileEntry], into: Path) -> None:
        bundle, written_by = artifact.bundle, artifact.bundle.job_id or artifact.job_id
        sha256 = {file.path: file.sha256 for file in files}

        def key_of(path: str) -> str:
            part = layout.part(sha256[path])
            return layout.checkpoint(written_by, bundle.attempt, bundle.step, part)

        await fetch_files(self._objects, key_of, files, into)

    async def _check(self, artifact: Artifact, directory: Path, shapes: Shapes) -> None:
        if artifact.kind == "adapter":
            await asyncio.to_thread(check_adapter, directory, shapes, rank=artifact.rank)
        else:
            key = layout.base_model(artifact.base_sha)
            base = await get_manifest(self._objects, key, BaseModelManifest)
            digests = {file.path: file.sha256 for file in base.files}
            await asyncio.to_thread(check_full, directory, shapes, digests)
        await asyncio.to_thread(require_finite, directory)

    async def _store(self, artifact: Artifact, files: tuple[FileEntry, ...], into: Path) -> str:
        digest = files_digest(files)
        for file in files:
            key = layout.model(digest, layout.file(file.path))
            await self._objects.put_file(key, into / file.path, sha256=file.sha256)
        manifest = ModelManifest(
            kind=artifact.kind,
            files=files,
            base_sha=artifact.base_sha,
            source=artifact.bundle,
            job_id=artifact.job_id,
        )
        await self._seal(digest, manifest)
        return digest

    async def _seal(self, digest: str, manifest: ModelManifest) -> None:
        """Write the manifest, unless another job trained the same files before."""
        key = layout.model(digest)
        if await self._objects.head(key) is None:
            await put_manifest(self._objects, key, manifest)
            return
        known = await get_manifest(self._objects, key, ModelManifest)
        if files_digest(known.files) != digest:
            raise CorruptObject(f"{key} names other files than its digest says")
