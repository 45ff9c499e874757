"""Mirror a base model's files to `base-models/<sha>`, checked, manifest last."""

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from schemas import layout
from schemas.artefacts import BaseModelManifest, FileEntry, files_digest
from schemas.model import DirectorySource, HubSource
from services.registry.clients.sources import Hub
from services.registry.clients.weights import read_header
from services.registry.decide import base_models
from services.registry.decide.base_models import BadBaseModel
from services.registry.decide.weights import BASE_DTYPES
from shared.errors import CorruptObject
from shared.storage.objects import ObjectStore, get_manifest, put_manifest, sha256_of

MAX_JSON_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Mirrored:
    base_sha: str
    manifest_sha256: str
    manifest: BaseModelManifest
    source: str
    """Where this registration came from; the manifest keeps where the first one did."""
    shapes: Mapping[str, tuple[int, ...]]


class BaseModelMirror:
    def __init__(self, objects: ObjectStore, hub: Hub, *, scratch: Path) -> None:
        self._objects = objects
        self._hub = hub
        self._scratch = scratch

    async def mirror(self, name: str, source: DirectorySource | HubSource) -> Mirrored:
        """Raises BadBaseModel, BadWeights, or an error of the store or the hub."""
        if isinstance(source, DirectorySource):
            return await self._mirror_directory(Path(source.path), name, source.kind)
        self._scratch.mkdir(parents=True, exist_ok=True)
        into = Path(mkdtemp(dir=self._scratch, prefix="base-"))
        try:
            await asyncio.to_thread(self._hub.download, source.repository, source.commit, into)
            return await self._mirror_directory(into, name, f"hub:{source.repository}@{source.commit}")
        finally:
            await asyncio.to_thread(shutil.rmtree, into)

    async def _mirror_directory(self, directory: Path, name: str, source: str) -> Mirrored:
        manifest, shapes = await asyncio.to_thread(describe, directory, name, source)
        base_sha = files_digest(manifest.files)
        for file in manifest.files:
            key = layout.base_model(base_sha, layout.file(file.path))
            await self._objects.put_file(key, directory / file.path, sha256=file.sha256)
        manifest, manifest_sha256 = await self._seal(base_sha, manifest)
        return Mirrored(base_sha, manifest_sha256, manifest, source, shapes)

    async def _seal(self, base_sha: str, manifest: BaseModelManifest) -> tuple[BaseModelManifest, str]:
        """Write the manifest, or take the one that the same files were given under another name."""
        key = layout.base_model(base_sha)
        if head := await self._objects.head(key):
            known = await get_manifest(self._objects, key, BaseModelManifest)
            if files_digest(known.files) != base_sha or head.sha256 is None:
                raise CorruptObject(f"{key} names other files than its sha says")
            return known, head.sha256
        return manifest, await put_manifest(self._objects, key, manifest)


def describe(directory: Path, name: str, source: str) -> tuple[BaseModelManifest, dict[str, tuple[int, ...]]]:
    """Check a model's directory; its manifest and the shape of each tensor. Reads every byte.

    Raises: BadBaseModel, BadWeights.
    """
    if not directory.is_dir():
        raise BadBaseModel(f"{directory}: no such directory on the registry's machine")
    chosen = base_models.choose_files([path.name for path in directory.iterdir() if path.is_file()])
    configs = {file: _checked_json(directory, file) for file in chosen if file.endswith("config.json")}
    shapes = _shapes(directory, chosen)
    template = directory / base_models.TEMPLATE
    manifest = BaseModelManifest(
        name=name,
        source=source,
        files=tuple(_entry(directory / file) for file in chosen),
        template_sha256=base_models.template_sha256(
            template.read_bytes() if template.is_file() else None,
            configs.get(base_models.TOKENIZER_CONFIG, {}),
        ),
        context_tokens=base_models.context_tokens(configs[base_models.CONFIG]),
        num_parameters=sum(_numel(shape) for shape in shapes.values()),
    )
    return manifest, shapes


def _checked_json(directory: Path, name: str) -> Mapping[str, object]:
    path = directory / name
    if path.stat().st_size > MAX_JSON_BYTES:
        raise BadBaseModel(f"{name}: {path.stat().st_size} bytes, expected at most {MAX_JSON_BYTES}")
    return base_models.require_no_code(name, path.read_bytes())


def _shapes(directory: Path, chosen: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    shards = {
        name: read_header(directory / name, dtypes=BASE_DTYPES)
        for name in chosen
        if name.endswith(".safetensors")
    }
    if base_models.INDEX in chosen:
        names = {file: frozenset(tensor.name for tensor in tensors) for file, tensors in shards.items()}
        base_models.require_index((directory / base_models.INDEX).read_bytes(), names)
    return {tensor.name: tensor.shape for tensors in shards.values() for tensor in tensors}


def _numel(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _entry(path: Path) -> FileEntry:
    return FileEntry(path=path.name, size_bytes=path.stat().st_size, sha256=sha256_of(path))
