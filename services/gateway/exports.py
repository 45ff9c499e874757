"""Exports of a tenant's model versions, as requests ask for them; `projections` writes them."""

from datetime import datetime
from typing import Literal

from schemas.base import Bytes, Count, Seconds, Value
from schemas.exports import (
    GGUF_FAMILIES,
    ExportActivity,
    ExportedFile,
    ExportFormat,
    ParityReport,
    Quantization,
    estimated_bytes,
)
from services.gateway.model import ModelVersion, RegisteredBase, Row
from services.gateway.representations import unix
from services.gateway.responses import Answer, Resource, Time
from services.gateway.store import Source, columns, find, select


class ExportProgress(Row):
    activity: ExportActivity
    done: Count
    """Bytes; sequences while files and model are compared."""
    total: Count
    """0 where it is not known."""
    seconds_left: Seconds | None


class ExportRow(Row):
    export_id: str
    tenant: str
    model_id: str
    format: ExportFormat
    quantization: Quantization | None
    state: Literal["running", "ready", "failed", "deleted"]
    estimated_bytes: Bytes
    size_bytes: Bytes
    files: tuple[ExportedFile, ...]
    parity: ParityReport | None
    progress: ExportProgress | None
    code: str
    message: str
    created_at: datetime
    finished_at: datetime | None

    def file(self, path: str) -> ExportedFile | None:
        return next((file for file in self.files if file.path == path), None)


class ExportError(Answer):
    code: str
    """Stable word for machines."""
    message: str


class ModelExport(Resource):
    object: Literal["model.export"]
    created: Time
    finished: Time | None
    model: str
    """Full name of the model version."""
    model_id: str
    format: ExportFormat
    quantization: Quantization | None
    """Type of the matrices of a GGUF file; null for safetensors, which keep the base model's own."""
    status: Literal["running", "ready", "failed"]
    progress: ExportProgress | None
    """How far it is while it runs; null before its first report, and afterwards."""
    bytes: Bytes
    """Size of all files; by estimate while it runs, 0 where it failed."""
    files: tuple[ExportedFile, ...]
    """Files to download, once it is ready."""
    parity: ParityReport | None
    """How near the files come to the model that was trained."""
    error: ExportError | None


class DeletedExport(Value):
    id: str
    object: Literal["model.export"]
    deleted: bool


FIND_EXPORT = f"""
    SELECT {columns(ExportRow)} FROM export
     WHERE export_id = $1 AND tenant = $2 AND model_id = $3 AND state <> 'deleted'"""
LIST_EXPORTS = f"""
    SELECT {columns(ExportRow)} FROM export
     WHERE model_id = $1 AND tenant = $2 AND state <> 'deleted' AND export_id > $3 ORDER BY export_id LIMIT $4"""
BYTES_OF_TENANT = """
    SELECT coalesce(sum(CASE state WHEN 'ready' THEN size_bytes ELSE estimated_bytes END), 0)::bigint
      FROM export WHERE tenant = $1 AND state IN ('running', 'ready')"""


async def find_export(source: Source, version: ModelVersion, export_id: str) -> ExportRow | None:
    return await find(ExportRow, source, FIND_EXPORT, export_id, version.tenant, version.model_id)


async def list_exports(
    source: Source, version: ModelVersion, *, after: str = "", limit: int
) -> list[ExportRow]:
    return await select(ExportRow, source, LIST_EXPORTS, version.model_id, version.tenant, after, limit)


def shown(row: ExportRow, version: ModelVersion) -> ModelExport:
    assert row.state != "deleted", "a deleted export is not shown"
    return ModelExport(
        id=row.export_id,
        object="model.export",
        created=unix(row.created_at),
        finished=None if row.finished_at is None else unix(row.finished_at),
        model=version.full_name,
        model_id=version.model_id,
        format=row.format,
        quantization=row.quantization,
        status=row.state,
        progress=row.progress if row.state == "running" else None,
        bytes={"running": row.estimated_bytes, "ready": row.size_bytes}.get(row.state, 0),
        files=row.files if row.state == "ready" else (),
        parity=row.parity,
        error=ExportError(code=row.code, message=row.message) if row.state == "failed" else None,
    )


def estimate(base: RegisteredBase | None, quantization: Quantization | None) -> int:
    """Return the bytes of an export by estimate; 0 where nothing is known of the base model."""
    if base is None:
        return 0
    capabilities = base.detail.capabilities
    dtype = capabilities.weights_dtype if capabilities else None
    return estimated_bytes(base.detail.num_parameters, dtype, quantization)


def why_no_gguf(base: RegisteredBase | None) -> str:
    """Return why a version of the base model cannot be written as GGUF, or an empty text where it may be."""
    capabilities = base.detail.capabilities if base else None
    if capabilities is None or capabilities.family in GGUF_FAMILIES:
        return ""
    return f"family {capabilities.family} cannot be written as GGUF; {', '.join(GGUF_FAMILIES)} can"
