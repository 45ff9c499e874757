"""Mirror a base model's files to `base-models/<sha>`, checked, manifest last."""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from schemas import layout
from schemas.artifacts import BaseModelManifest, FileEntry, files_digest
from schemas.capabilities import BaseCapabilities
from schemas.layout import TRAINING_TEMPLATE
from schemas.model import DirectorySource, HubSource
from services.registry.clients.folders import Limits, require_bounded, require_importable
from services.registry.clients.inspection import Inspector, inspect
from services.registry.clients.sources import Hub
from services.registry.clients.templates import require_same_text
from services.registry.decide import base_models
from services.registry.decide.base_models import BadBaseModel
from services.registry.decide.capabilities import capabilities
from shared.errors import CorruptObject
from shared.model_files.documents import read_bounded, read_config
from shared.model_files.models import CONFIG, read_shards
from shared.model_files.tensors import Tensor, shapes_of
from shared.storage.objects import ObjectStore, get_manifest, put_manifest, sha256_of


@dataclass(frozen=True)
class Mirrored:
    base_sha: str
    manifest_sha256: str
    manifest: BaseModelManifest
    source: str
    """Where this registration came from; the manifest keeps where the first one did."""
    tensors: tuple[Tensor, ...]
    capabilities: BaseCapabilities
    """Capabilities as they are found now; the manifest keeps what was found at the first registration."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes_of(self.tensors)


class BaseModelMirror:
    def __init__(
        self, objects: ObjectStore, hub: Hub, *, scratch: Path, limits: Limits, inspect: Inspector = inspect
    ) -> None:
        self._objects = objects
        self._hub = hub
        self._scratch = scratch
        self._limits = limits
        self._inspect = inspect

    async def mirror(
        self, name: str, source: DirectorySource | HubSource, training_template: str | None = None
    ) -> Mirrored:
        """Mirror the files, checked. Raises BadBaseModel, BadModel, NoVerdict, or an error of the store or hub."""
        if isinstance(source, DirectorySource):
            await asyncio.to_thread(require_importable, Path(source.path), self._limits)
            if training_template is None:
                return await self._mirror_directory(Path(source.path), name, source.kind)
        self._scratch.mkdir(parents=True, exist_ok=True)
        into = Path(mkdtemp(dir=self._scratch, prefix="base-"))
        try:
            origin = await asyncio.to_thread(self._gather, source, into)
            if training_template is not None:
                _add_training_template(into, training_template)
            return await self._mirror_directory(into, name, origin)
        finally:
            await asyncio.to_thread(shutil.rmtree, into)

    def _gather(self, source: DirectorySource | HubSource, into: Path) -> str:
        """Gather the model's files in a directory of ours, and return where they came from."""
        if isinstance(source, DirectorySource):
            _link_files(Path(source.path), into)
            return source.kind
        origin = f"hub:{source.repository}@{source.commit}"
        require_bounded(origin, self._hub.sizes(source.repository, source.commit), self._limits)
        self._hub.download(source.repository, source.commit, into)
        require_importable(into, self._limits)
        return origin

    async def _mirror_directory(self, directory: Path, name: str, source: str) -> Mirrored:
        manifest, tensors = await asyncio.to_thread(describe, directory, name, source)
        if manifest.training_template_sha256 is not None:
            await require_same_text(directory)
        abilities = capabilities(await self._inspect(directory), tensors)
        manifest = manifest.model_copy(update={"capabilities": abilities})
        base_sha = files_digest(manifest.files)
        for file in manifest.files:
            key = layout.base_model(base_sha, layout.file(file.path))
            await self._objects.put_file(key, directory / file.path, sha256=file.sha256)
        manifest, manifest_sha256 = await self._seal(base_sha, manifest)
        return Mirrored(base_sha, manifest_sha256, manifest, source, tensors, abilities)

    async def _seal(self, base_sha: str, manifest: BaseModelManifest) -> tuple[BaseModelManifest, str]:
        """Write the manifest, or take the one that the same files were given under another name."""
        key = layout.base_model(base_sha)
        if head := await self._objects.head(key):
            known = await get_manifest(self._objects, key, BaseModelManifest)
            if files_digest(known.files) != base_sha or head.sha256 is None:
                raise CorruptObject(f"{key} names other files than its sha says")
            return known, head.sha256
        return manifest, await put_manifest(self._objects, key, manifest)


def describe(directory: Path, name: str, source: str) -> tuple[BaseModelManifest, tuple[Tensor, ...]]:
    """Check a model's directory; return its manifest and the tensors of its files. Reads every byte.

    Raises: BadBaseModel, BadModel.
    """
    chosen = base_models.choose_files([path.name for path in directory.iterdir() if path.is_file()])
    configs = {file: read_config(directory / file) for file in chosen if file.endswith(CONFIG)}
    tensors = read_shards(directory, chosen)
    template = directory / base_models.TEMPLATE
    manifest = BaseModelManifest(
        name=name,
        source=source,
        files=tuple(_entry(directory / file) for file in chosen),
        template_sha256=base_models.template_sha256(
            read_bounded(template) if template.is_file() else None,
            configs.get(base_models.TOKENIZER_CONFIG, {}),
        ),
        context_tokens=base_models.context_tokens(configs[CONFIG]),
        num_parameters=sum(tensor.numel for tensor in tensors),
        training_template_sha256=base_models.training_sha256(
            read_bounded(directory / TRAINING_TEMPLATE) if TRAINING_TEMPLATE in chosen else None
        ),
    )
    return manifest, tensors


def _link_files(directory: Path, into: Path) -> None:
    for path in directory.iterdir():
        if path.is_file():
            (into / path.name).symlink_to(path.resolve())


def _add_training_template(directory: Path, text: str) -> None:
    path = directory / TRAINING_TEMPLATE
    if path.exists():
        raise BadBaseModel(
            f"{TRAINING_TEMPLATE}: the model has one of its own, expected no other to be given"
        )
    path.write_text(text)


def _entry(path: Path) -> FileEntry:
    return FileEntry(path=path.name, size_bytes=path.stat().st_size, sha256=sha256_of(path))
