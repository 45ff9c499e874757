"""/v1/files: spooled, hashed, put once to S3 as blobs/<sha256>."""

import asyncio
import shutil
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, File, Form, UploadFile
from fastapi.responses import StreamingResponse

from schemas import layout
from schemas.base import FileRef
from services.gateway import shapes, store, uploads
from services.gateway.deps import Caller, Found, page_size
from services.gateway.errors import ApiError, not_found
from shared.failpoints import failpoint
from shared.storage.objects import sha256_of

router = APIRouter()


@router.post("/files")
async def upload(
    caller: Caller, found: Found, file: Annotated[UploadFile, File()], purpose: Annotated[str, Form()]
) -> dict[str, Any]:
    uploads.require_purpose(purpose)
    limit = found.settings.max_upload_bytes
    if file.size is None or file.size > limit:
        message = f"file: found {file.size} bytes, expected at most {limit}"
        raise ApiError(413, message, param="file", code="file_too_large")
    path = found.settings.scratch_dir / f"upload-{uuid4().hex}"
    try:
        await asyncio.to_thread(_spool, file, path)
        file_format = await asyncio.to_thread(uploads.look_at, path, purpose=purpose)
        digest = await asyncio.to_thread(sha256_of, path)
        await found.service.objects.put_file(layout.blob(digest), path, sha256=digest)
    finally:
        path.unlink(missing_ok=True)
    ref = FileRef(
        file_id=f"file-{uuid4().hex[:24]}",
        sha256=digest,
        size_bytes=file.size,
        filename=Path(file.filename or "upload.jsonl").name[:255],
    )
    async with found.service.unit() as unit:
        await store.add_file(
            unit.conn, ref, tenant=caller.tenant, purpose=purpose, file_format=file_format, now=unit.now
        )
    failpoint("gateway.accepted")
    return shapes.file(await store.find_file_row(found.service.database, ref.file_id, caller.tenant))


@router.get("/files")
async def list_files(
    caller: Caller, found: Found, purpose: str | None = None, after: str | None = None, limit: int = 20
) -> dict[str, Any]:
    size = page_size(limit)
    rows = await store.list_files(
        found.service.database, caller.tenant, purpose=purpose, after=after, limit=size + 1
    )
    return shapes.page([shapes.file(row) for row in rows[:size]], has_more=len(rows) > size)


@router.get("/files/{file_id}")
async def retrieve(caller: Caller, found: Found, file_id: str) -> dict[str, Any]:
    return shapes.file(await _row(caller, found, file_id))


@router.get("/files/{file_id}/content")
async def content(caller: Caller, found: Found, file_id: str) -> StreamingResponse:
    row = await _row(caller, found, file_id)
    path = found.settings.scratch_dir / f"download-{uuid4().hex}"
    await found.service.objects.get_file(
        layout.blob(row["sha256"]), path, sha256=row["sha256"], size_bytes=row["size_bytes"]
    )
    stream = path.open("rb")
    path.unlink()
    headers = {"x-content-type-options": "nosniff"}
    return StreamingResponse(
        iter(lambda: stream.read(1 << 20), b""), media_type="text/plain", headers=headers
    )


@router.delete("/files/{file_id}")
async def delete(caller: Caller, found: Found, file_id: str) -> dict[str, Any]:
    async with found.service.unit() as unit:
        if not await store.delete_file(unit.conn, file_id, caller.tenant, now=unit.now):
            raise not_found("file", file_id)
    return {"id": file_id, "object": "file", "deleted": True}


async def _row(caller: Caller, found: Found, file_id: str) -> Any:
    row = await store.find_file_row(found.service.database, file_id, caller.tenant)
    if row is None:
        raise not_found("file", file_id)
    return row


def _spool(file: UploadFile, path: Path) -> None:
    with path.open("wb") as target:
        shutil.copyfileobj(file.file, target, 1 << 20)
