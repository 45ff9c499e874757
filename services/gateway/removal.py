"""Bytes of uploaded files: named before they are stored, removed once nothing names or needs them any more.

Equal bytes are one object, whoever uploaded them. A file that is `removing` keeps everybody from storing the
same bytes again until they are gone.
"""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from schemas import layout
from schemas.base import FileRef, Sha256
from schemas.specification import DatasetFormat
from services.gateway import store
from shared.errors import StorageUnavailable
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.unit import Task, Unit
from shared.postgres.database import Database
from shared.service import Service
from shared.storage.objects import sha256_of

log = get_logger(__name__)

POLL_SECONDS = 0.1
RESERVE_SECONDS = 10.0
"""How long an upload waits for the removal of the same bytes."""
SWEEP_EVERY = timedelta(seconds=5)
UPLOAD_LIMIT = timedelta(hours=1)
"""An upload that has not stored its bytes by then was interrupted."""


class RemoveBytes(Task):
    sha256: Sha256

    @property
    def key(self) -> str:
        return self.sha256


class Remover:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._objects = service.objects

    def register(self) -> None:
        self._service.on_task(RemoveBytes, work=self.remove, done=self.removed, failed=self.postponed)
        self._service.every(SWEEP_EVERY, self.sweep, singleton=True)

    async def sweep(self) -> None:
        """Files whose bytes were needed when they were deleted and are not now, and interrupted uploads."""
        async with self._service.unit() as unit:
            await unit.conn.execute(store.EXPIRE_UPLOADS, unit.now - UPLOAD_LIMIT, unit.now)
            await begin(unit)

    async def remove(self, task: RemoveBytes) -> list[str]:
        """The files that are gone with the bytes, which another file may keep."""
        async with self._service.database.transaction() as conn:
            file_ids, is_named = await store.removable(conn, task.sha256)
        if file_ids and not is_named:
            await self._objects.delete([layout.blob(task.sha256)])
            failpoint("gateway.removed")
        return file_ids

    async def removed(self, task: RemoveBytes, file_ids: list[str], unit: Unit) -> None:
        await unit.conn.execute(store.REMOVED, file_ids)
        if await unit.conn.fetchval(store.IS_BEING_REMOVED, task.sha256):
            await unit.start_task(task)  # deleted while this task was under way

    async def postponed(self, task: RemoveBytes, error: Exception, unit: Unit) -> None:
        """The next sweep starts over."""
        log.warning("bytes not removed", sha256=task.sha256, error=f"{type(error).__name__}: {error}")


async def begin(unit: Unit, file_id: str | None = None) -> None:
    """Start to remove the bytes of this deleted file, or of all, where nothing needs them any more."""
    for sha256 in await store.start_removing(unit.conn, file_id):
        await unit.start_task(RemoveBytes(sha256=sha256))


async def store_file(
    service: Service,
    path: Path,
    *,
    filename: str,
    tenant: str,
    purpose: str,
    file_format: DatasetFormat | None,
    num_rows: int,
    upload_id: str | None = None,
) -> FileRef:
    """Name the bytes, then store them; `store.confirm_file` makes the file one that can be used.

    A part of an upload is never confirmed.

    Raises StorageUnavailable while the same bytes are being removed.
    """
    ref = FileRef(
        file_id=f"{'part' if upload_id else 'file'}-{uuid4().hex[:24]}",
        sha256=await asyncio.to_thread(sha256_of, path),
        size_bytes=path.stat().st_size,
        filename=filename,
    )
    until = time.monotonic() + RESERVE_SECONDS
    while not await _reserve(
        service,
        ref,
        tenant=tenant,
        purpose=purpose,
        file_format=file_format,
        num_rows=num_rows,
        upload_id=upload_id,
    ):
        if time.monotonic() > until:
            raise StorageUnavailable(f"{layout.blob(ref.sha256)}: earlier bytes are still being removed")
        await asyncio.sleep(POLL_SECONDS)
    await service.objects.put_file(layout.blob(ref.sha256), path, sha256=ref.sha256)
    return ref


async def _reserve(
    service: Service,
    ref: FileRef,
    *,
    tenant: str,
    purpose: str,
    file_format: DatasetFormat | None,
    num_rows: int,
    upload_id: str | None,
) -> bool:
    async with service.unit() as unit:
        return await store.reserve_file(
            unit.conn,
            ref,
            tenant=tenant,
            purpose=purpose,
            file_format=file_format,
            num_rows=num_rows,
            now=unit.now,
            upload_id=upload_id,
        )


async def until_removed(database: Database, file_id: str, *, seconds: float) -> tuple[str, str]:
    """State and sha256 of the file once its removal has ended, or could not begin, or has taken that long."""
    until = time.monotonic() + seconds
    state, sha256 = await store.state_of_file(database, file_id)
    while state == "removing" and time.monotonic() < until:
        await asyncio.sleep(POLL_SECONDS)
        state, sha256 = await store.state_of_file(database, file_id)
    return state, sha256
