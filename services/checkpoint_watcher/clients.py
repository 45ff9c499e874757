"""Reading bundles back from S3, and deleting them."""

from dataclasses import dataclass

from schemas import layout
from schemas.artifacts import BundleManifest
from schemas.base import BundleRef
from services.checkpoint_watcher import decide
from shared.errors import CorruptObject
from shared.failpoints import failpoint
from shared.storage.objects import ObjectStore, get_manifest


@dataclass(frozen=True)
class Verdict:
    size_bytes: int
    problem: str
    """Empty when every part is what the manifest says."""


async def verify_bundle(objects: ObjectStore, job_id: str, bundle: BundleRef) -> Verdict:
    """Read every byte of the bundle. Raises StorageUnavailable, which says nothing about the bundle."""
    try:
        manifest = await get_manifest(
            objects, _key(job_id, bundle), BundleManifest, sha256=bundle.manifest_sha256
        )
        _check_identity(manifest, job_id, bundle)
        for part in manifest.parts:
            key = _key(job_id, bundle, layout.part(part.sha256))
            await objects.verify(key, sha256=part.sha256, size_bytes=part.size_bytes)
    except KeyError as error:
        return Verdict(0, f"{error.args[0]} does not exist")
    except (CorruptObject, ValueError) as error:
        return Verdict(0, str(error))
    return Verdict(sum(part.size_bytes for part in manifest.parts), "")


async def delete_bundle(objects: ObjectStore, job_id: str, bundle: BundleRef) -> None:
    """Delete the manifest first: from then on the bundle does not exist, whatever is left of its parts."""
    prefix = _key(job_id, bundle, "")
    await objects.delete([_key(job_id, bundle)])
    failpoint("gc.marked")
    await objects.delete([head.key for head in await objects.list_objects(prefix)])


async def delete_abandoned(objects: ObjectStore, job_id: str, attempt: int) -> int:
    """Delete the parts of bundles that an attempt, which writes no more, never finished; return how many."""
    heads = await objects.list_objects(layout.checkpoints(job_id, attempt))
    keys = decide.abandoned([head.key for head in heads])
    await objects.delete(keys)
    return len(keys)


async def delete_all(objects: ObjectStore, job_id: str, attempts: int) -> None:
    """Delete whatever the job's attempts uploaded, manifests first: also what no fact ever named."""
    for attempt in range(1, attempts + 1):
        keys = [head.key for head in await objects.list_objects(layout.checkpoints(job_id, attempt))]
        await objects.delete([key for key in keys if key.endswith(f"/{layout.MANIFEST}")])
        await objects.delete(keys)


async def delete_logs(objects: ObjectStore, job_id: str) -> None:
    await objects.delete([head.key for head in await objects.list_objects(layout.logs(job_id))])


def _key(job_id: str, bundle: BundleRef, path: str = layout.MANIFEST) -> str:
    return layout.checkpoint(job_id, bundle.attempt, bundle.step, path)


def _check_identity(manifest: BundleManifest, job_id: str, bundle: BundleRef) -> None:
    identity = (manifest.job_id, manifest.attempt, manifest.step)
    expected = (job_id, bundle.attempt, bundle.step)
    if identity != expected:
        raise CorruptObject(f"manifest is of {identity}, expected (job, attempt, step) {expected}")
