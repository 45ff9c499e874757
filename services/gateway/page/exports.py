"""Exports of a model version: asked for, followed, compared in words and numbers, downloaded, deleted."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Header, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from schemas.exports import ExportFormat, Quantization, export_id
from services.gateway import exports, readmodels
from services.gateway.deps import LARGE_PAGE, Context, Gateway
from services.gateway.exports import ExportRow
from services.gateway.model import ModelVersion
from services.gateway.page import formats, render, streams
from services.gateway.page.sessions import Present, Sender, Visitor
from services.gateway.page.views import EXPORTS
from services.gateway.requests import Export
from services.gateway.routes import exports as routes
from services.gateway.routes.models import model_version
from services.gateway.usage import usage_of

router = APIRouter()

VARIANTS: tuple[tuple[ExportFormat, Quantization | None, str], ...] = (
    (
        "safetensors",
        None,
        "Merged weights as safetensors, in the base model's type: for transformers and vLLM",
    ),
    ("gguf", "f16", "GGUF in 16 bits: for llama.cpp and what builds on it"),
    ("gguf", "q8_0", "GGUF in 8 bits: half the size, nearly the same answers"),
    ("gguf", "q4_0", "GGUF in 4 bits: a quarter of the size, other answers more often"),
)
FEW_BITS: frozenset[Quantization | None] = frozenset(("q8_0", "q4_0"))
"""Quantizations whose answers may be too far from the model's."""


@router.get("/models/{model_id}/exports")
async def page(request: Request, visitor: Present, context: Context, model_id: str) -> Response:
    version = await model_version(visitor.principal, context, model_id)
    stream = f"/models/{version.model_id}/exports/stream"
    return render.page(
        request, "exports.html.jinja", visitor, stream=stream, **await _shown(visitor, context, version)
    )


async def _shown(visitor: Visitor, context: Gateway, version: ModelVersion) -> dict[str, Any]:
    database = context.service.database
    rows = await exports.list_exports(database, version, limit=LARGE_PAGE)
    base = await readmodels.find_base(database, version.base_model)
    stored = (await usage_of(database, visitor.principal.tenant, now=database.now()))["stored_bytes"]
    limit = visitor.principal.quotas.stored_bytes
    no_gguf, by_id = exports.why_no_gguf(base), {row.export_id: row for row in rows}

    def offer(file_format: ExportFormat, quantization: Quantization | None, words: str) -> dict[str, Any]:
        row = by_id.get(export_id(version.model_id, file_format, quantization))
        size = exports.estimate(base, quantization)
        has_room = limit is None or stored + size <= limit
        return {
            "format": file_format,
            "quantization": quantization,
            "words": words,
            "size": size or None,
            "why_not": no_gguf
            if file_format == "gguf" and no_gguf
            else why_not_begun(row, has_room=has_room),
            "is_again": row is not None,
        }

    return {
        "model": version,
        "exports": [(row, EXPORTS[row.state], in_words(row)) for row in rows],
        "offers": [offer(*variant) for variant in VARIANTS],
        "version": streams.version_of(rows, no_gguf, limit is None or stored > limit),
        "now": database.now(),
    }


def why_not_begun(row: ExportRow | None, *, has_room: bool) -> str:
    """Return why the export cannot be asked for now; empty where it can."""
    if row is not None and row.state != "failed":
        return {"running": "it is under way", "ready": "it is ready"}[row.state]
    return "" if has_room else "it would exceed what you may store"


def in_words(row: ExportRow) -> str:
    """Return what the comparison with the trained model says, or how far the export is, or why it failed."""
    if row.state == "running":
        return _progress_of(row)
    if row.parity is None:
        return row.message
    parity = row.parity
    if row.state == "failed":
        remedy = " Export it in more bits." if row.quantization in FEW_BITS else ""
        return f"{row.message[:1].upper()}{row.message[1:]}.{remedy}"
    changed = ""
    if parity.training_kl is not None and parity.mean_kl > 0 and parity.training_kl > parity.mean_kl:
        changed = f" Training had changed it {parity.training_kl / parity.mean_kl:,.0f} times as much."
    return (
        f"The files and the trained model find the same next token most probable at "
        f"{formats.percent(parity.equal_next_tokens)} of {parity.num_tokens:,} positions.{changed}"
    )


def _progress_of(row: ExportRow) -> str:
    progress = row.progress
    if progress is None:
        return "Waiting."
    what = {
        "waiting": "Waiting",
        "fetching": "Fetching the model",
        "writing": "Writing the files",
        "comparing": "Comparing the files with the trained model",
        "storing": "Storing the files",
    }[progress.activity]
    share = f": {formats.percent(progress.done / progress.total)}" if progress.total else ""
    left = (
        f", about {formats.duration(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    )
    return f"{what}{share}{left}."


@router.get("/models/{model_id}/exports/stream")
async def stream(request: Request, visitor: Present, context: Context, model_id: str) -> StreamingResponse:
    version = await model_version(visitor.principal, context, model_id)

    async def show() -> dict[str, Any]:
        return await _shown(visitor, context, version)

    return streams.follow_part(
        request, context, visitor, show, element_id="exports", template="exports_parts.html.jinja"
    )


@router.post("/models/{model_id}/exports")
async def create(
    request: Request,
    sender: Sender,
    context: Context,
    model_id: str,
    file_format: Annotated[ExportFormat, Form(alias="format")] = "safetensors",
    quantization: Annotated[Quantization | None, Form()] = None,
) -> Response:
    body = Export(format=file_format, quantization=quantization)
    export = await routes.create(sender.principal, context, model_id, body)
    return _answer(request, model_id, f"{export.id} has begun.")


@router.post("/models/{model_id}/exports/{export_id}/delete")
async def delete(
    request: Request, sender: Sender, context: Context, model_id: str, export_id: str
) -> Response:
    await routes.delete(sender.principal, context, model_id, export_id)
    return _answer(request, model_id, f"{export_id} is deleted.")


@router.get("/models/{model_id}/exports/{export_id}/files/{path}")
async def download(
    visitor: Present,
    context: Context,
    model_id: str,
    export_id: str,
    path: str,
    range_header: str | None = Header(None, alias="range"),
    if_range: str | None = Header(None),
) -> Response:
    return await routes.download(
        visitor.principal, context, model_id, export_id, path, range_header, if_range
    )


def _answer(request: Request, model_id: str, message: str) -> Response:
    if "hx-request" not in request.headers:
        return RedirectResponse(f"/models/{model_id}/exports", 303, render.HEADERS)
    html = render.text("answer.html.jinja", message=message)
    return Response(html, media_type="text/html", headers=render.HEADERS)
