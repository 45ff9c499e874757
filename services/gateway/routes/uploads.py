"""/v1/uploads: a file in parts, which are stored one by one and put together when all are there."""

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Depends, Request
from starlette.datastructures import UploadFile

from schemas import layout
from services.gateway import removal, representations, responses, store, uploads
from services.gateway.deps import Caller, Context, Gateway
from services.gateway.errors import ApiError, not_found
from services.gateway.model import Upload, UploadPart
from services.gateway.requests import CompleteUpload, CreateUpload
from services.gateway.routes.files import require_confirmed, scratch_file, spool, store_rows
from services.gateway.usage import require_bytes

router = APIRouter()

PART = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "properties": {"data": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}
"""What the reference says of a body that is parsed here."""


async def own_upload(caller: Caller, context: Context, upload_id: str) -> Upload:
    upload = await store.find_upload(context.service.database, upload_id, caller.tenant)
    if upload is None:
        raise not_found("upload", upload_id)
    return upload


OwnUpload = Annotated[Upload, Depends(own_upload)]


@router.post("/uploads")
async def create(caller: Caller, context: Context, body: CreateUpload) -> responses.Upload:
    uploads.require_purpose(body.purpose, uploads.DATASET_PURPOSES)
    if body.bytes > context.settings.max_upload_bytes:
        message = f"bytes: found {body.bytes}, expected at most {context.settings.max_upload_bytes}"
        raise ApiError(400, message, param="bytes", code="invalid_value")
    async with context.service.unit() as unit:
        upload = await store.insert_upload(
            unit.conn,
            f"upload-{uuid4().hex[:24]}",
            caller.tenant,
            filename=uploads.safe_name(body.filename),
            purpose=body.purpose,
            size_bytes=body.bytes,
            now=unit.now,
        )
    return await _shown(context, upload)


@router.post("/uploads/{upload_id}/parts", openapi_extra=PART)
async def add_part(
    caller: Caller, context: Context, upload: OwnUpload, request: Request
) -> responses.UploadPart:
    """Store a part of at most 64 MiB. Parts may come at the same time, in any order."""
    _require_pending(context, upload)
    announced = request.headers.get("content-length", "")
    size_bytes = int(announced) if announced.isdecimal() else uploads.MAX_PART_BYTES
    with context.transfer(caller, size_bytes):
        async with request.form(max_files=1, max_fields=1, max_part_size=1024) as form:
            uploads.require_fields((name for name, _ in form.multi_items()), uploads.PART_FIELDS)
            data = form["data"]
            if not isinstance(data, UploadFile):
                raise ApiError(400, "data: found text, expected bytes", param="data", code="invalid_value")
            limit = caller.quotas.stored_bytes
            await require_bytes(context.service.database, caller.tenant, limit, data.size or 0)
            with scratch_file(context.settings) as path:
                await asyncio.to_thread(spool, data, path)
                ref = await removal.store_file(
                    context.service,
                    path,
                    filename=upload.filename,
                    tenant=caller.tenant,
                    purpose=uploads.PART_PURPOSE,
                    file_format=None,
                    num_rows=0,
                    upload_id=upload.upload_id,
                )
    created_at = representations.unix(context.service.database.now())
    return responses.UploadPart(
        id=ref.file_id, object="upload.part", created_at=created_at, upload_id=upload.upload_id
    )


@router.post("/uploads/{upload_id}/complete")
async def complete(
    caller: Caller, context: Context, upload: OwnUpload, body: CompleteUpload
) -> responses.Upload:
    """The parts in this order are the file, which is looked at as any upload is."""
    if upload.state == "completed":
        return await _shown(context, upload)
    _require_pending(context, upload)
    parts = await _parts(context, upload, body.part_ids)
    with context.transfer(caller, upload.size_bytes), scratch_file(context.settings) as path:
        md5 = await _put_together(context, parts, path)
        if body.md5 and body.md5.lower() != md5:
            raise ApiError(400, f"md5: found {md5}, expected {body.md5}", param="md5", code="invalid_value")
        ref = await store_rows(caller, context, path, filename=upload.filename, purpose=upload.purpose)
    async with context.service.unit() as unit:
        ended = await store.end_upload(unit.conn, upload.upload_id, "completed", file_id=ref.file_id)
        if ended is None:
            raise _not_pending(await own_upload(caller, context, upload.upload_id))
        await require_confirmed(unit, ref)
        for part_id in await store.delete_parts(unit.conn, upload.upload_id, now=unit.now):
            await removal.begin(unit, part_id)
    return await _shown(context, ended)


@router.post("/uploads/{upload_id}/cancel")
async def cancel(caller: Caller, context: Context, upload: OwnUpload) -> responses.Upload:
    async with context.service.unit() as unit:
        ended = await store.end_upload(unit.conn, upload.upload_id, "cancelled")
        if ended is None:
            raise _not_pending(await own_upload(caller, context, upload.upload_id))
        for part_id in await store.delete_parts(unit.conn, upload.upload_id, now=unit.now):
            await removal.begin(unit, part_id)
    return await _shown(context, ended)


async def _parts(context: Gateway, upload: Upload, part_ids: Sequence[str]) -> list[UploadPart]:
    """Raises ApiError unless each is there, is named once, and all together are as long as was announced."""
    async with context.service.unit() as unit:
        parts = await store.hold_parts(unit.conn, upload.upload_id, part_ids, now=unit.now)
    missing = [part_id for part_id in part_ids if part_id not in parts]
    if missing or len(parts) != len(part_ids):
        problem = f"{missing[0][:80]!r} is no part of this upload" if missing else "a part is named twice"
        raise ApiError(400, f"part_ids: {problem}", param="part_ids", code="invalid_value")
    size_bytes = sum(part.size_bytes for part in parts.values())
    if size_bytes != upload.size_bytes:
        message = f"part_ids: found parts of {size_bytes} bytes together, expected {upload.size_bytes}"
        raise ApiError(400, message, param="part_ids", code="invalid_value")
    return [parts[part_id] for part_id in part_ids]


async def _put_together(context: Gateway, parts: Sequence[UploadPart], path: Path) -> str:
    """The md5 of what is at `path` afterwards."""
    digest = hashlib.md5(usedforsecurity=False)
    for part in parts:
        raw = await context.service.objects.get_bytes(
            layout.blob(part.sha256), sha256=part.sha256, limit_bytes=uploads.MAX_PART_BYTES
        )
        digest.update(raw)
        await asyncio.to_thread(_append, path, raw)
    return digest.hexdigest()


def _append(path: Path, raw: bytes) -> None:
    with path.open("ab") as file:
        file.write(raw)


def _require_pending(context: Gateway, upload: Upload) -> None:
    if upload.state != "pending":
        raise _not_pending(upload)
    if _expires_at(upload) < context.service.database.now():
        message = f"upload {upload.upload_id!r} expired at {_expires_at(upload):%H:%M:%S}: begin another one"
        raise ApiError(400, message, code="upload_expired")


def _not_pending(upload: Upload) -> ApiError:
    message = f"upload {upload.upload_id!r} is {upload.state}, expected pending"
    return ApiError(400, message, code="upload_not_pending")


def _expires_at(upload: Upload) -> datetime:
    return upload.created_at + removal.UPLOAD_LIMIT


async def _shown(context: Gateway, upload: Upload) -> responses.Upload:
    database = context.service.database
    file = await store.find_file(database, upload.file_id, upload.tenant) if upload.file_id else None
    return representations.upload(upload, file, expires_at=_expires_at(upload), now=database.now())
