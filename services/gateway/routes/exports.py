"""Routes of exports: files of a model version that run without the platform."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import ExitStack

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from schemas import layout
from schemas.exports import ExportedFile, export_id
from schemas.model import DeleteExport, ExportModel
from services.gateway import exports, readmodels, representations
from services.gateway.deps import LARGE_PAGE, Caller, Context, Gateway, page_size
from services.gateway.errors import ApiError, not_found, unavailable
from services.gateway.exports import DeletedExport, ExportRow, ModelExport
from services.gateway.model import ModelVersion
from services.gateway.rates import HeldResponse
from services.gateway.requests import Export
from services.gateway.responses import Page
from services.gateway.routes.models import model_version
from services.gateway.store import Source
from services.gateway.usage import require_bytes
from shared.errors import CorruptObject
from shared.storage.objects import ObjectStore

router = APIRouter()

CHUNK_BYTES = 8 * 1024 * 1024
"""What is asked of the store at once: a download holds as much memory and no disk."""


@router.post("/models/{name:path}/exports")
async def create(caller: Caller, context: Context, name: str, body: Export | None = None) -> ModelExport:
    """Write a version as files that run without the platform; the export that there is where it was asked for before.

    One that failed begins again.
    """
    version, body = await model_version(caller, context, name), body or Export()
    command = ExportModel(model_id=version.model_id, tenant=caller.tenant, **body.model_dump())
    database = context.service.database
    quantization = (body.quantization or "f16") if body.format == "gguf" else None
    asked_id = export_id(version.model_id, body.format, quantization)
    row = await exports.find_export(database, version, asked_id)
    if row is None or row.state == "failed":
        estimate = exports.estimate(await readmodels.find_base(database, version.base_model), quantization)
        await require_bytes(database, caller.tenant, caller.quotas.stored_bytes, estimate)
        await _send(context, command)
        row = await exports.find_export(database, version, asked_id)
    if row is None:
        raise unavailable(f"export {asked_id!r} is asked for but not decided yet", code="not_decided_yet")
    return exports.shown(row, version)


@router.get("/models/{name:path}/exports")
async def list_exports(
    caller: Caller, context: Context, name: str, after: str = "", limit: int = LARGE_PAGE
) -> Page[ModelExport]:
    """List the version's exports by id."""
    version = await model_version(caller, context, name)
    size = page_size(limit, at_most=LARGE_PAGE)
    rows = await exports.list_exports(context.service.database, version, after=after, limit=size + 1)
    return representations.page([exports.shown(row, version) for row in rows], size=size)


@router.get("/models/{name:path}/exports/{export_id}")
async def retrieve(caller: Caller, context: Context, name: str, export_id: str) -> ModelExport:
    version = await model_version(caller, context, name)
    return exports.shown(await _export(context.service.database, version, export_id), version)


@router.delete("/models/{name:path}/exports/{export_id}")
async def delete(caller: Caller, context: Context, name: str, export_id: str) -> DeletedExport:
    """Delete its files; 400 while it is under way."""
    version = await model_version(caller, context, name)
    await _export(context.service.database, version, export_id)
    command = DeleteExport(model_id=version.model_id, tenant=caller.tenant, export_id=export_id)
    return DeletedExport(id=export_id, object="model.export", deleted=await _send(context, command))


@router.get(
    "/models/{name:path}/exports/{export_id}/files/{path:path}",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The bytes of the file; of a range with 206",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def download(
    caller: Caller,
    context: Context,
    name: str,
    export_id: str,
    path: str,
    range_header: str | None = Header(None, alias="range"),
    if_range: str | None = Header(None),
) -> Response:
    """A file, or one range of its bytes. `etag` is its sha256; a whole file of other bytes ends too early."""
    version = await model_version(caller, context, name)
    row = await _export(context.service.database, version, export_id)
    file = row.file(path) if row.state == "ready" else None
    if file is None:
        raise not_found("file", path, param="path")
    etag = f'"{file.sha256}"'
    asked = range_header if if_range in (None, etag) else None
    start, stop = range_of(asked, file.size_bytes)
    held = ExitStack()
    # Nothing is put aside for a download but the chunk that is on its way.
    held.enter_context(context.transfer(caller, min(CHUNK_BYTES, file.size_bytes)))
    headers = {
        "accept-ranges": "bytes",
        "content-disposition": f'attachment; filename="{file.path}"',
        "content-length": str(stop - start),
        "etag": etag,
        "x-content-type-options": "nosniff",
    }
    key = layout.export(row.export_id, layout.part(file.sha256))
    response = HeldResponse(
        _chunks(context.service.objects, key, file, start, stop),
        held,
        media_type="application/octet-stream",
        headers=headers,
    )
    if stop - start < file.size_bytes:
        response.status_code = 206
        response.headers["content-range"] = f"bytes {start}-{stop - 1}/{file.size_bytes}"
    return response


def range_of(header: str | None, size_bytes: int) -> tuple[int, int]:
    """Return the first byte and the one behind the last. What is no single range of bytes is the whole file.

    Raises ApiError (416) where the range begins behind the file's end.
    """
    unit, _, text = (header or "").partition("=")
    first, dash, last = text.strip().partition("-")
    is_range = unit == "bytes" and dash and (first + last).isdecimal()
    if not is_range:
        return 0, size_bytes
    if not first:
        start, stop = max(0, size_bytes - int(last)), size_bytes
    else:
        start, stop = int(first), min(size_bytes, int(last) + 1) if last else size_bytes
    if start >= stop:
        message = f"range: found {header!r}, expected bytes of a file of {size_bytes}"
        raise ApiError(416, message, param="range", code="invalid_range")
    return start, stop


async def _chunks(
    objects: ObjectStore, key: str, file: ExportedFile, start: int, stop: int
) -> AsyncIterator[bytes]:
    """Yield the bytes. Of a whole file the last chunk is held back until all have the right sha256."""
    is_whole, digest = stop - start == file.size_bytes, hashlib.sha256()
    for begin in range(start, stop, CHUNK_BYTES):
        end = min(begin + CHUNK_BYTES, stop)
        chunk = await objects.get_range(key, begin, end)
        digest.update(chunk)
        if is_whole and end == stop and digest.hexdigest() != file.sha256:
            raise CorruptObject(f"{key}: has sha256 {digest.hexdigest()}, expected {file.sha256}")
        yield chunk


async def _export(source: Source, version: ModelVersion, export_id: str) -> ExportRow:
    row = await exports.find_export(source, version, export_id)
    if row is None:
        raise not_found("export", export_id, param="export_id")
    return row


async def _send(context: Gateway, command: ExportModel | DeleteExport) -> bool:
    """Return whether it was answered in time. Raises ApiError where it is refused."""
    async with context.service.unit() as unit:
        command_id = (await context.send(unit, command.tenant, command))[0]
    return await context.outcome_of(command_id) is not None
