"""What is computed of a dataset version once for all jobs: log-probabilities of its answers by a model, in S3.

Each byte is verified. What is damaged is deleted and computed again.
"""

import asyncio
from pathlib import Path

from schemas import layout
from schemas.artifacts import DatasetManifest, FileEntry, ReferenceManifest
from schemas.specification import Method, Recipe, canonical_sha256
from services.trainer_agent.protocol import ReferenceComputed, TrainingOrder
from services.trainer_agent.runner.storing import until_stored
from shared.errors import Conflict, CorruptObject
from shared.log import get_logger
from shared.storage.objects import ObjectStore, fetch_files, get_manifest, put_manifest

log = get_logger(__name__)

RULES_VERSION = 1
"""Version of the file's content, which is part of a key. Raised with every change of what the file holds."""


async def fetch_reference(objects: ObjectStore, order: TrainingOrder, into: Path) -> Path | None:
    """Fetch the log-probabilities. None: the method needs none, nobody has computed them yet, or they are damaged."""
    if not compares(order.recipe):
        return None
    version, key = order.dataset_version, reference_key(order)
    try:
        manifest = await get_manifest(objects, layout.feature(version, key), ReferenceManifest)
    except KeyError:
        return None
    except CorruptObject as error:
        await _take_away(objects, order, error)
        return None
    path = layout.part(manifest.file.sha256)
    try:
        await fetch_files(objects, lambda _: layout.feature(version, key, path), [manifest.file], into)
    except (CorruptObject, KeyError) as error:
        await _take_away(objects, order, error)
        return None
    log.info("reference log-probabilities are there", dataset_version=version, key=key)
    return into / manifest.file.path


def compares(recipe: Recipe) -> bool:
    """Return whether training compares its answers with those of the model that it started from."""
    return recipe.method is Method.DPO and recipe.preferences.has_reference


def needs_start(recipe: Recipe, *, is_resumed: bool, has_reference: bool) -> bool:
    """Return whether weights that an earlier job trained must be there. A bundle has all trained weights; those at
    the start are only compared with, at the end of a run beside 4 bits on the served base too."""
    return not is_resumed or (compares(recipe) and (recipe.is_quantized or not has_reference))


def reference_key(order: TrainingOrder) -> str:
    """Return a digest of all that the numbers follow from, as far as it is known before there is a device."""
    manifest = DatasetManifest.model_validate_json((order.dataset_dir / layout.MANIFEST).read_bytes())
    precision = order.recipe.precision
    # Only where there is one, so that other keys are what they were.
    quantization = {"quantization": order.recipe.quantization} if order.recipe.quantization else {}
    return canonical_sha256(
        quantization
        | {
            "rules_version": RULES_VERSION,
            "base_sha": order.base_sha,
            "started_from": order.started_from,
            "template_sha256": manifest.template_sha256,
            "dataset_version": order.dataset_version,
            "weights": order.recipe.kind,
            "precision": precision if precision != "auto" else f"auto on {order.device}",
        }
    )


class ReferenceUploader:
    """Stores what the child has computed, beside its training."""

    def __init__(self, objects: ObjectStore, order: TrainingOrder) -> None:
        self._objects = objects
        self._order = order
        self._task: asyncio.Task[None] | None = None

    def offer(self, computed: ReferenceComputed) -> None:
        self._task = asyncio.create_task(self._store(computed))

    async def finish(self) -> None:
        """Return when nothing is on its way any more."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _store(self, computed: ReferenceComputed) -> None:
        version, key = self._order.dataset_version, reference_key(self._order)
        file = FileEntry(path=layout.REFERENCE, size_bytes=computed.size_bytes, sha256=computed.sha256)
        part = layout.feature(version, key, layout.part(file.sha256))
        manifest = ReferenceManifest(identity=computed.identity, file=file)
        try:
            if self._order.reference is not None:
                log.warning("reference log-probabilities that did not fit are replaced", key=key)
                await until_stored(lambda: _delete(self._objects, self._order))
            await until_stored(lambda: self._objects.put_file(part, computed.path, sha256=file.sha256))
            await until_stored(lambda: put_manifest(self._objects, layout.feature(version, key), manifest))
        except Conflict:
            log.info("another job has stored reference log-probabilities meanwhile", key=key)
        except (CorruptObject, OSError) as error:
            log.exception("reference log-probabilities not stored", key=key, error=type(error).__name__)
        else:
            log.info("reference log-probabilities stored", dataset_version=version, key=key)


async def _take_away(objects: ObjectStore, order: TrainingOrder, error: Exception) -> None:
    """Delete what is damaged: no node of the attempt is to read it, and what will be computed needs its place."""
    log.warning(
        "reference log-probabilities are damaged: deleted, and computed again",
        dataset_version=order.dataset_version,
        error=str(error),
    )
    await _delete(objects, order)


async def _delete(objects: ObjectStore, order: TrainingOrder) -> None:
    """Delete the manifest first: from then on the log-probabilities do not exist."""
    version, key = order.dataset_version, reference_key(order)
    await objects.delete([layout.feature(version, key)])
    rest = await objects.list_objects(layout.feature(version, key, ""))
    await objects.delete(head.key for head in rest)
