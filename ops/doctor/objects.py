"""What lies in S3: every key with its size, and what each manifest names."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TypeVar

from pydantic import ValidationError

from ops.doctor.history import Manifest, Part, Store
from schemas import layout
from schemas.artifacts import BaseModelManifest, BundleManifest, DatasetManifest, FileEntry, ModelManifest
from shared.errors import CorruptObject
from shared.storage.objects import ObjectStore

PREFIXES = layout.ACCESS["admin"].reads
PARALLEL = 8
Say = Callable[[str], None]
Result = TypeVar("Result")


async def read_store(objects: ObjectStore, *, deep: bool, say: Say) -> Store:
    """`deep`: read every part through and compare its bytes with what its manifest says."""
    sizes = {head.key: head.size_bytes for prefix in PREFIXES for head in await objects.list_objects(prefix)}
    keys = [key for key in sizes if key.endswith(f"/{layout.MANIFEST}")]
    say(f"S3: {len(sizes)} objects, {len(keys)} manifests")
    results = await _together(_read_manifest(objects, key) for key in keys)
    manifests = {key: manifest for key, manifest in results if manifest is not None}
    manifests = await _without_deleted(objects, manifests, sizes)
    corrupt = await _corrupt(objects, manifests, sizes, say) if deep else {}
    return Store(sizes, manifests, corrupt)


def parts_of(key: str, data: bytes) -> tuple[Part, ...]:
    """What the manifest at `key` names. Raises ValueError where it is none."""
    family, name, *_ = key.split("/")
    folder = key.removesuffix(layout.MANIFEST)
    match family:
        case "checkpoints":
            files: Iterable[FileEntry] = BundleManifest.model_validate_json(data).parts
            return tuple(_part(folder + layout.part(file.sha256), file) for file in files)
        case "datasets":
            dataset = DatasetManifest.model_validate_json(data)
            files = (*dataset.training, *dataset.validation, dataset.report)
            return tuple(_part(layout.dataset(name, file.path), file) for file in files)
        case "base-models":
            files = BaseModelManifest.model_validate_json(data).files
            return tuple(_part(layout.base_model(name, layout.file(file.path)), file) for file in files)
        case "models":
            files = ModelManifest.model_validate_json(data).files
            return tuple(_part(layout.model(name, layout.file(file.path)), file) for file in files)
    return ()


def _part(key: str, file: FileEntry) -> Part:
    return Part(key, file.size_bytes, file.sha256)


async def _read_manifest(objects: ObjectStore, key: str) -> tuple[str, Manifest | None]:
    """Read a manifest; None where it was deleted since the keys were listed."""
    try:
        data = await objects.get_bytes(key)
    except KeyError:
        return key, None
    digest = hashlib.sha256(data).hexdigest()
    try:
        return key, Manifest(digest, parts_of(key, data))
    except (ValidationError, ValueError) as error:
        return key, Manifest(digest, problem=f"no manifest: {str(error).splitlines()[0]}")


async def _without_deleted(
    objects: ObjectStore, manifests: Mapping[str, Manifest], sizes: Mapping[str, int]
) -> dict[str, Manifest]:
    """A deletion takes the manifest first, so one whose parts vanish meanwhile is gone, too."""
    kept = dict(manifests)
    for key, manifest in manifests.items():
        is_whole = all(part.key in sizes for part in manifest.parts)
        if not is_whole and await objects.head(key) is None:
            del kept[key]
    return kept


async def _corrupt(
    objects: ObjectStore, manifests: Mapping[str, Manifest], sizes: Mapping[str, int], say: Say
) -> dict[str, str]:
    parts = {part.key: part for manifest in manifests.values() for part in manifest.parts}
    whole = [part for part in parts.values() if sizes.get(part.key) == part.size_bytes]
    say(f"S3: reading {len(whole)} parts, {sum(part.size_bytes for part in whole):,} bytes")
    results = await _together(_problem(objects, part) for part in whole)
    return {key: problem for key, problem in results if problem}


async def _together(work: Iterable[Coroutine[None, None, Result]]) -> list[Result]:
    limit = asyncio.Semaphore(PARALLEL)

    async def one(coroutine: Coroutine[None, None, Result]) -> Result:
        async with limit:
            return await coroutine

    return await asyncio.gather(*map(one, work))


async def _problem(objects: ObjectStore, part: Part) -> tuple[str, str]:
    try:
        await objects.verify(part.key, sha256=part.sha256, size_bytes=part.size_bytes)
    except KeyError:
        return part.key, ""
    except CorruptObject as error:
        return part.key, str(error)
    return part.key, ""
