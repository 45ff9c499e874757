"""/v1/files, and /v1/admin/files for those of suites: spooled, hashed, put once to S3 as blobs/<sha256>."""

import asyncio
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from starlette.datastructures import FormData, UploadFile

from schemas import layout
from schemas.base import FileRef
from services.gateway import removal, representations, responses, store, uploads
from services.gateway.access import Principal
from services.gateway.deps import Admin, Caller, Context, Gateway, invalid_cursor, page_size
from services.gateway.errors import ApiError, not_found, unavailable
from services.gateway.model import StoredFile
from services.gateway.rates import HeldResponse
from services.gateway.responses import Page
from services.gateway.settings import Settings
from services.gateway.store import Order
from services.gateway.usage import require_bytes
from shared.failpoints import failpoint
from shared.messaging.unit import Unit
from shared.row_files import is_parquet

router = APIRouter()

MAX_FILES_OF_A_PAGE = 10_000
"""OpenAI's."""
PARQUET_TYPE = "application/vnd.apache.parquet"
UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string"},
                    },
                }
            }
        },
    }
}
"""What the reference says of a body that is parsed here."""


@router.post("/files", openapi_extra=UPLOAD)
async def upload(caller: Caller, context: Context, request: Request) -> responses.File:
    return await receive(caller, context, request, uploads.DATASET_PURPOSES)


@router.post("/admin/files", openapi_extra=UPLOAD)
async def upload_suite(admin: Admin, context: Context, request: Request) -> responses.File:
    return await receive(admin, context, request, uploads.SUITE_PURPOSES)


def _unchecked(form: FormData) -> None:
    """A caller with a key needs to show nothing else."""


async def receive(
    caller: Principal,
    context: Gateway,
    request: Request,
    purposes: Collection[str],
    *,
    check: Callable[[FormData], None] = _unchecked,
    beside: Collection[str] = (),
) -> responses.File:
    """Store the file of a form. `check`: raises where the form is no good; `beside`: fields of the check."""
    # Parsed here, so that nothing is spooled for a caller who is not known.
    with context.transfer(caller, _announced_bytes(request, context.settings)):
        async with request.form(max_files=1, max_fields=8, max_part_size=1024) as form:
            check(form)
            fields = FormData([(name, value) for name, value in form.multi_items() if name not in beside])
            return await _accept(caller, context, fields, purposes)


def _announced_bytes(request: Request, settings: Settings) -> int:
    """Return the announced length of the whole body; where the request announces none, as much as may come."""
    announced = request.headers.get("content-length", "")
    return int(announced) if announced.isdecimal() else settings.max_upload_bytes


async def _accept(
    caller: Principal, context: Gateway, form: FormData, purposes: Collection[str]
) -> responses.File:
    uploads.require_fields(name for name, _ in form.multi_items())
    file, purpose = form["file"], form["purpose"]
    if not isinstance(file, UploadFile) or not isinstance(purpose, str):
        message = "file: found text, expected a file" if isinstance(file, str) else "purpose: found a file"
        param = "file" if isinstance(file, str) else "purpose"
        raise ApiError(400, message, param=param, code="invalid_value")
    uploads.require_purpose(purpose, purposes)
    await require_bytes(context.service.database, caller.tenant, caller.quotas.stored_bytes, file.size or 0)
    return await _store(caller, context, file, purpose)


async def _store(caller: Principal, context: Gateway, file: UploadFile, purpose: str) -> responses.File:
    with scratch_file(context.settings) as path:
        await asyncio.to_thread(spool, file, path)
        ref = await store_rows(caller, context, path, filename=file.filename or "", purpose=purpose)
    async with context.service.unit() as unit:
        await require_confirmed(unit, ref)
    failpoint("gateway.accepted")
    return representations.file(await get_file(caller, context, ref.file_id))


@contextmanager
def scratch_file(settings: Settings) -> Iterator[Path]:
    path = settings.scratch_dir / f"upload-{uuid4().hex}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


async def store_rows(
    caller: Principal, context: Gateway, path: Path, *, filename: str, purpose: str
) -> FileRef:
    """A file that is not confirmed yet. Raises ApiError where it cannot be JSON lines or Parquet."""
    look = await context.first_look(path, purpose)
    return await removal.store_file(
        context.service,
        path,
        filename=uploads.safe_name(filename),
        tenant=caller.tenant,
        purpose=purpose,
        file_format=look.format,
        num_rows=look.num_rows,
    )


async def require_confirmed(unit: Unit, ref: FileRef) -> None:
    if not await store.confirm_file(unit.conn, ref.file_id):
        raise unavailable("file: storing it took too long", param="file", code="upload_expired")


@router.get("/files")
async def list_files(
    caller: Caller,
    context: Context,
    purpose: str | None = None,
    order: Order = "desc",
    after: str | None = None,
    limit: int = MAX_FILES_OF_A_PAGE,
) -> Page[responses.File]:
    """List files by the time of creation, the newest first or, with `order=asc`, the oldest first."""
    return await _page(caller, context, purpose, order, after, limit)


@router.get("/admin/files")
async def list_suite_files(
    admin: Admin,
    context: Context,
    purpose: str | None = None,
    order: Order = "desc",
    after: str | None = None,
    limit: int = MAX_FILES_OF_A_PAGE,
) -> Page[responses.File]:
    return await _page(admin, context, purpose, order, after, limit)


async def _page(
    caller: Principal, context: Gateway, purpose: str | None, order: Order, after: str | None, limit: int
) -> Page[responses.File]:
    size = page_size(limit, at_most=MAX_FILES_OF_A_PAGE)
    database = context.service.database
    if after is not None and not await store.has_file(database, after, caller.tenant):
        raise invalid_cursor(after)
    files = await store.list_files(
        database, caller.tenant, purpose=purpose, order=order, after=after, limit=size + 1
    )
    return representations.page([*map(representations.file, files)], size=size)


@router.get("/files/{file_id}")
async def retrieve(caller: Caller, context: Context, file_id: str) -> responses.File:
    return representations.file(await get_file(caller, context, file_id))


@router.get(
    "/files/{file_id}/content",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The bytes of the file",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                PARQUET_TYPE: {"schema": {"type": "string", "format": "binary"}},
            },
        }
    },
)
async def content(caller: Caller, context: Context, file_id: str) -> StreamingResponse:
    file = await get_file(caller, context, file_id)
    path = context.settings.scratch_dir / f"download-{uuid4().hex}"
    with ExitStack() as held:
        held.enter_context(context.transfer(caller, file.size_bytes))
        await context.service.objects.get_file(
            layout.blob(file.sha256), path, sha256=file.sha256, size_bytes=file.size_bytes
        )
        media_type = PARQUET_TYPE if is_parquet(path) else "text/plain"
        stream = held.enter_context(path.open("rb"))
        path.unlink()
        parts = iter(lambda: stream.read(1 << 20), b"")
        return HeldResponse(
            parts, held.pop_all(), media_type=media_type, headers={"x-content-type-options": "nosniff"}
        )


@router.delete("/files/{file_id}", response_model_exclude_none=True)
async def delete(caller: Caller, context: Context, file_id: str) -> responses.DeletedFile:
    return await _delete(caller, context, file_id)


@router.delete("/admin/files/{file_id}", response_model_exclude_none=True)
async def delete_suite_file(admin: Admin, context: Context, file_id: str) -> responses.DeletedFile:
    return await _delete(admin, context, file_id)


async def _delete(caller: Principal, context: Gateway, file_id: str) -> responses.DeletedFile:
    """`deleted` only once the bytes are gone; until then each call says what still needs them."""
    async with context.service.unit() as unit:
        if not await store.delete_file(unit.conn, file_id, caller.tenant, now=unit.now):
            raise not_found("file", file_id)
        await removal.begin(unit, file_id)
    database = context.service.database
    state, sha256 = await removal.until_removed(
        database, file_id, seconds=context.settings.command_wait_seconds
    )
    needed_by = await store.needed_by(database, caller.tenant, sha256)
    return representations.deleted_file(file_id, state, needed_by)


async def get_file(caller: Principal, context: Gateway, file_id: str) -> StoredFile:
    file = await store.find_file(context.service.database, file_id, caller.tenant)
    if file is None:
        raise not_found("file", file_id)
    return file


def spool(file: UploadFile, path: Path) -> None:
    with path.open("wb") as target:
        shutil.copyfileobj(file.file, target, 1 << 20)
