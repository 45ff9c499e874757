"""The models that shall be on a node: fetched by requests that serving_controller signs, and verified."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from services.serving_controller.clients.files import ModelFiles
from services.serving_controller.model import Servable
from services.serving_controller.protocol import FileProblem, FolderState, ModelFolder
from shared.errors import CorruptObject, StorageUnavailable
from shared.log import get_logger
from shared.model_files.tensors import BadModel

log = get_logger(__name__)

PROBLEMS: tuple[tuple[type[Exception], FileProblem], ...] = (
    (CorruptObject, FileProblem.CORRUPT),
    (KeyError, FileProblem.MISSING),
    (BadModel, FileProblem.BAD_MODEL),
    (StorageUnavailable, FileProblem.AWAY),
)


class Folders:
    def __init__(self, files: ModelFiles, replica_dir: Path) -> None:
        """replica_dir: the replica's own folder, below which it reads its adapters."""
        self._files = files
        self._replica_dir = replica_dir
        self._fetching: dict[str, asyncio.Task[FolderState]] = {}

    @property
    def states(self) -> tuple[FolderState, ...]:
        return tuple(
            task.result() if task.done() else FolderState(folder_id=folder_id)
            for folder_id, task in self._fetching.items()
        )

    async def follow(self, folders: Sequence[ModelFolder]) -> None:
        """Begin to fetch those that are new, and remove those that shall not be there any more."""
        for folder in folders:
            if folder.folder_id not in self._fetching:
                self._fetching[folder.folder_id] = asyncio.create_task(self._fetch(folder))
        for gone in self._fetching.keys() - {folder.folder_id for folder in folders}:
            task = self._fetching.pop(gone)
            task.cancel()
            await asyncio.wait({task})
            await asyncio.to_thread(shutil.rmtree, self._adapter_dir(gone), ignore_errors=True)

    async def _fetch(self, folder: ModelFolder) -> FolderState:
        try:
            path = await self._path(folder)
        except (BadModel, CorruptObject, StorageUnavailable, KeyError) as error:
            problem = next(problem for kind, problem in PROBLEMS if isinstance(error, kind))
            message = f"{type(error).__name__}: {error}"
            log.warning("files not fetched", kind=folder.kind, digest=folder.digest, error=message)
            return FolderState(folder_id=folder.folder_id, problem=problem, message=message)
        log.info("files fetched", kind=folder.kind, digest=folder.digest, path=str(path))
        return FolderState(folder_id=folder.folder_id, path=str(path))

    async def _path(self, folder: ModelFolder) -> Path:
        match folder.kind:
            case "base":
                return await self._files.base(folder.base_sha)
            case "full":
                return await self._files.full(_servable(folder, "full"))
            case _:
                return await self._files.adapter(
                    _servable(folder, "adapter"), self._adapter_dir(folder.folder_id)
                )

    def _adapter_dir(self, folder_id: str) -> Path:
        return self._replica_dir / "adapters" / folder_id


def _servable(folder: ModelFolder, kind: str) -> Servable:
    """Return the version as far as its files are concerned."""
    return Servable(
        model_id="",
        full_name="",
        kind="full" if kind == "full" else "adapter",
        digest=folder.digest,
        base_model="",
        base_sha=folder.base_sha,
        rank=folder.rank,
    )
