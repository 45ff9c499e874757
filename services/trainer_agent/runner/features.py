"""What is computed of a dataset version once for all jobs: log-probabilities of its answers by a model, in S3.

Each byte is verified. What is damaged, or does not fit, is computed again and stored beside it under the next number:
no node takes an object away. The newest one counts.
"""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from schemas import layout
from schemas.artifacts import DatasetManifest, FileEntry, ReferenceManifest
from schemas.specification import Recipe, canonical_sha256
from services.trainer_agent.protocol import ReferenceComputed, TrainingOrder
from services.trainer_agent.rights import compares
from services.trainer_agent.runner.storing import until_stored
from shared.errors import Conflict, CorruptObject
from shared.log import get_logger
from shared.storage.objects import WriteOnceStore, fetch_files, get_manifest, put_manifest

log = get_logger(__name__)

RULES_VERSION = 1
"""Version of the file's content, which is part of a key. Raised with every change of what the file holds."""


MAX_NUMBER = 9
_NUMBERED = re.compile(rf"(?:\.(?P<number>[0-9]))?/{re.escape(layout.MANIFEST)}")


@dataclass(frozen=True)
class Reference:
    path: Path | None = None
    """File of the log-probabilities. None: the method needs none, there are none yet, or they are damaged."""
    next_number: int = 0
    """Number under which others are stored, if they are computed."""


async def fetch_reference(objects: WriteOnceStore, order: TrainingOrder, into: Path) -> Reference:
    if not compares(order.recipe):
        return Reference()
    version, key = order.dataset_version, reference_key(order)
    newest = await _newest_number(objects, version, key)
    if newest is None:
        return Reference()
    stored = numbered(key, newest)
    try:
        manifest = await get_manifest(objects, layout.feature(version, stored), ReferenceManifest)
        path = layout.part(manifest.file.sha256)
        await fetch_files(objects, lambda _: layout.feature(version, stored, path), [manifest.file], into)
    except (CorruptObject, KeyError) as error:
        message = "reference log-probabilities are damaged: computed again"
        log.warning(message, dataset_version=version, key=stored, error=repr(error))
        return Reference(next_number=newest + 1)
    log.info("reference log-probabilities are there", dataset_version=version, key=stored)
    return Reference(into / manifest.file.path, newest + 1)


async def _newest_number(objects: WriteOnceStore, version: str, key: str) -> int | None:
    prefix = layout.features(version) + key
    names = (head.key.removeprefix(prefix) for head in await objects.list_objects(prefix))
    manifests = filter(None, map(_NUMBERED.fullmatch, names))
    return max((int(manifest["number"] or 0) for manifest in manifests), default=None)


def numbered(key: str, number: int) -> str:
    """Return the key of the log-probabilities that replace those with the number before."""
    return f"{key}.{number}" if number else key


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

    def __init__(self, objects: WriteOnceStore, order: TrainingOrder) -> None:
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
        version, number = self._order.dataset_version, self._order.reference_number
        if number > MAX_NUMBER:
            log.warning("reference log-probabilities not stored: replaced too often", dataset_version=version)
            return
        key = numbered(reference_key(self._order), number)
        file = FileEntry(path=layout.REFERENCE, size_bytes=computed.size_bytes, sha256=computed.sha256)
        part = layout.feature(version, key, layout.part(file.sha256))
        manifest = ReferenceManifest(identity=computed.identity, file=file)
        try:
            await until_stored(lambda: self._objects.put_file(part, computed.path, sha256=file.sha256))
            await until_stored(lambda: put_manifest(self._objects, layout.feature(version, key), manifest))
        except Conflict:
            log.info("another job has stored reference log-probabilities meanwhile", key=key)
        except (CorruptObject, OSError) as error:
            log.exception("reference log-probabilities not stored", key=key, error=type(error).__name__)
        else:
            log.info("reference log-probabilities stored", dataset_version=version, key=key)
