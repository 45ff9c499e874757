"""Puts a directory into a store as the registry does: files first, the manifest last."""

from pathlib import Path

from schemas import layout
from schemas.artifacts import BaseModelManifest, FileEntry, ModelManifest, files_digest
from schemas.base import BundleRef
from shared.storage.objects import ObjectStore, put_manifest, sha256_of
from tests.builders import capabilities

FIRST_BUNDLE = BundleRef(attempt=1, step=1, manifest_sha256="0" * 64)


def entries(directory: Path) -> tuple[FileEntry, ...]:
    return tuple(
        FileEntry(path=path.name, size_bytes=path.stat().st_size, sha256=sha256_of(path))
        for path in sorted(directory.iterdir())
    )


async def put_base(objects: ObjectStore, directory: Path, *, template_sha256: str = "7e" * 32) -> str:
    """The base model's sha."""
    files = entries(directory)
    sha = files_digest(files)
    for file in files:
        key = layout.base_model(sha, layout.file(file.path))
        await objects.put_file(key, directory / file.path, sha256=file.sha256)
    manifest = BaseModelManifest(
        name="tiny",
        source="directory",
        files=files,
        template_sha256=template_sha256,
        context_tokens=512,
        num_parameters=1,
        capabilities=capabilities(),
    )
    await put_manifest(objects, layout.base_model(sha), manifest)
    return sha


async def put_model(
    objects: ObjectStore,
    directory: Path,
    *,
    base_sha: str,
    kind: str = "adapter",
    job_id: str = "ftjob-1",
    bundle: BundleRef = FIRST_BUNDLE,
) -> str:
    """The model's digest; one that is there already stays as it is."""
    files = entries(directory)
    digest = files_digest(files)
    for file in files:
        key = layout.model(digest, layout.file(file.path))
        await objects.put_file(key, directory / file.path, sha256=file.sha256)
    if await objects.head(layout.model(digest)) is None:
        manifest = ModelManifest(kind=kind, files=files, base_sha=base_sha, source=bundle, job_id=job_id)
        await put_manifest(objects, layout.model(digest), manifest)
    return digest
