"""/v1/fine_tuning/jobs, and its alias /v1/fine-tuning/jobs."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse

from schemas.job import CancelJob, JobMessage, PauseJob, ResumeJob
from services.gateway import decide, readmodels, shapes, store
from services.gateway.decide import TERMINAL_PHASES, Inputs
from services.gateway.deps import Caller, Found, Gateway, page_size
from services.gateway.errors import ApiError, not_found
from services.gateway.requests import CreateDataset, CreateJob
from shared.failpoints import failpoint
from shared.messaging.unit import Unit

router = APIRouter()

SSE_POLL_SECONDS = 0.25
SSE_KEEPALIVE_SECONDS = 15.0


@router.post("/jobs")
async def create(
    caller: Caller,
    found: Found,
    request: Request,
    body: CreateJob,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> JSONResponse:
    """Two commands with one correlation id: the dataset and the job that waits for it."""
    digest = hashlib.sha256(await request.body()).hexdigest()
    correlation_id = uuid4().hex
    async with found.service.unit(correlation_id=correlation_id) as unit:
        if idempotency_key and not await store.claim_key(unit.conn, caller.tenant, idempotency_key, digest):
            return await _same_answer(unit, caller, idempotency_key, digest)
        answer = await _submit(unit, caller, body)
        if idempotency_key:
            await store.save_response(unit.conn, caller.tenant, idempotency_key, answer)
    failpoint("gateway.accepted")
    return JSONResponse(answer)


async def _submit(unit: Unit, caller: Caller, body: CreateJob) -> dict[str, Any]:
    job_id, dataset_id = f"ftjob-{uuid4().hex[:16]}", f"ds-{uuid4().hex[:16]}"
    inputs = await inputs_of(unit, caller.tenant, body)
    submit = decide.job_command(
        body, inputs, tenant=caller.tenant, tier=caller.tier, job_id=job_id, dataset_id=dataset_id
    )
    dataset = decide.dataset_command(body, inputs, tenant=caller.tenant, dataset_id=dataset_id)
    await unit.emit(dataset, submit)
    spec = submit.spec.model_dump(mode="json")
    await store.note_submitted(unit.conn, job_id, caller.tenant, spec, dataset_id, now=unit.now)
    return shapes.job(await readmodels.find_job(unit.conn, job_id, caller.tenant))


async def _same_answer(unit: Unit, caller: Caller, key: str, digest: str) -> JSONResponse:
    row = await store.find_key(unit.conn, caller.tenant, key)
    if row["body_sha256"] != digest:
        message = f"Idempotency-Key {key!r} was used before with another body"
        raise ApiError(422, message, param="Idempotency-Key", code="idempotency_key_reused")
    return JSONResponse(row["response"], headers={"idempotent-replayed": "true"})


async def inputs_of(unit: Unit, tenant: str, body: CreateJob | CreateDataset) -> Inputs:
    files = {name: await store.find_file(unit.conn, name, tenant) for name in decide.file_ids(body)}
    return Inputs(await store.find_base(unit.conn, body.model), files)


@router.get("/jobs")
async def list_jobs(
    caller: Caller, found: Found, request: Request, after: str | None = None, limit: int = 20
) -> dict[str, Any]:
    size = page_size(limit)
    wanted = {
        name[len("metadata[") : -1]: value
        for name, value in request.query_params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    rows = await readmodels.list_jobs(
        found.service.database, caller.tenant, metadata=wanted or None, after=after, limit=size + 1
    )
    return shapes.page([shapes.job(row) for row in rows[:size]], has_more=len(rows) > size)


@router.get("/jobs/{job_id}")
async def retrieve(caller: Caller, found: Found, job_id: str) -> dict[str, Any]:
    return shapes.job(await _row(caller, found, job_id))


@router.post("/jobs/{job_id}/cancel")
async def cancel(caller: Caller, found: Found, job_id: str) -> dict[str, Any]:
    return await _command(caller, found, CancelJob(job_id=job_id, tenant=caller.tenant))


@router.post("/jobs/{job_id}/pause")
async def pause(caller: Caller, found: Found, job_id: str) -> dict[str, Any]:
    return await _command(caller, found, PauseJob(job_id=job_id, tenant=caller.tenant))


@router.post("/jobs/{job_id}/resume")
async def resume(caller: Caller, found: Found, job_id: str) -> dict[str, Any]:
    return await _command(caller, found, ResumeJob(job_id=job_id, tenant=caller.tenant))


async def _command(caller: Caller, found: Gateway, command: JobMessage) -> dict[str, Any]:
    """Send it and wait until the job moved; a refusal is the answer."""
    before = await _row(caller, found, command.job_id)
    async with found.service.unit() as unit:
        command_id = (await unit.emit(command))[0]
    until = time.monotonic() + found.settings.command_wait_seconds
    while time.monotonic() < until:
        outcome = await readmodels.find_outcome(found.service.database, command_id)
        if outcome is not None and outcome["event_type"] == "CommandRefused":
            payload = outcome["payload"]
            raise ApiError(409, payload["message"], param=payload["param"], code=payload["code"])
        row = await _row(caller, found, command.job_id)
        if row["phase"] != before["phase"]:
            return shapes.job(row)
        await asyncio.sleep(SSE_POLL_SECONDS)
    return shapes.job(await _row(caller, found, command.job_id))


@router.get("/jobs/{job_id}/events", response_model=None)
async def events(
    caller: Caller,
    found: Found,
    request: Request,
    job_id: str,
    after: str | None = None,
    limit: int = 20,
    stream: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> dict[str, Any] | StreamingResponse:
    """Newest first, as OpenAI lists them; or, with `stream=true`, a server-sent stream from the beginning."""
    await _row(caller, found, job_id)
    if stream or "text/event-stream" in request.headers.get("accept", ""):
        begin = _event_number(last_event_id, param="Last-Event-ID") or 0
        return StreamingResponse(_stream(caller, found, job_id, begin), media_type="text/event-stream")
    size = page_size(limit)
    before = _event_number(after, param="after")
    rows = await readmodels.events_before(found.service.database, job_id, before=before, limit=size + 1)
    return shapes.page([shapes.job_event(row) for row in rows[:size]], has_more=len(rows) > size)


async def _stream(caller: Caller, found: Gateway, job_id: str, begin: int) -> AsyncIterator[str]:
    """Ends after the last event of a finished job; a client that returns with Last-Event-ID misses nothing."""
    last, spoke_at = begin, time.monotonic()
    while True:
        row = await _row(caller, found, job_id)
        rows = await readmodels.events_after(found.service.database, job_id, after=last)
        for event in rows:
            last, spoke_at = event["id"], time.monotonic()
            body = JSONResponse(shapes.job_event(event)).body
            yield f"id: ftevent-{event['id']}\nevent: {event['type']}\ndata: {bytes(body).decode()}\n\n"
        if not rows:
            if row["phase"] in TERMINAL_PHASES:
                yield "data: [DONE]\n\n"
                return
            if time.monotonic() - spoke_at > SSE_KEEPALIVE_SECONDS:
                spoke_at = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(SSE_POLL_SECONDS)


@router.get("/jobs/{job_id}/checkpoints")
async def checkpoints(
    caller: Caller, found: Found, job_id: str, after: str | None = None, limit: int = 10
) -> dict[str, Any]:
    await _row(caller, found, job_id)
    size = page_size(limit)
    attempt, step = _checkpoint_place(after)
    rows = await found.service.database.fetch(
        readmodels.LIST_CHECKPOINTS, job_id, caller.tenant, attempt, step, size + 1
    )
    return shapes.page([shapes.checkpoint(row) for row in rows[:size]], has_more=len(rows) > size)


@router.get("/jobs/{job_id}/metrics")
async def metrics(
    caller: Caller,
    found: Found,
    job_id: str,
    after_step: int = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> dict[str, Any]:
    await _row(caller, found, job_id)
    rows = await found.service.database.fetch(readmodels.LIST_STEPS, job_id, after_step, limit)
    data = [{"step": row["step"], "attempt": row["attempt"], **row["metrics"]} for row in rows]
    return {"object": "list", "data": data, "has_more": len(rows) == limit}


@router.get("/jobs/{job_id}/logs")
async def logs(
    caller: Caller, found: Found, job_id: str, attempt: int | None = None, node: int = 0, after: int = -1
) -> dict[str, Any]:
    """Chunks of an attempt's log with a number greater than `after`; `next` is what to ask with next time."""
    row = await _row(caller, found, job_id)
    wanted = row["attempt"] if attempt is None else attempt
    return await found.logs_of(job_id, wanted, node, after)


async def _row(caller: Caller, found: Gateway, job_id: str) -> Any:
    row = await readmodels.find_job(found.service.database, job_id, caller.tenant)
    if row is None:
        raise not_found("fine-tuning job", job_id, param="fine_tuning_job_id")
    return row


def _event_number(event_id: str | None, *, param: str) -> int | None:
    if event_id is None:
        return None
    number = event_id.removeprefix("ftevent-")
    if not number.isdigit():
        raise ApiError(400, f"{param}: found {event_id!r}, expected ftevent-<number>", param=param)
    return int(number)


def _checkpoint_place(checkpoint_id: str | None) -> tuple[int | None, int | None]:
    if checkpoint_id is None:
        return None, None
    attempt, _, step = checkpoint_id.rpartition("-")
    attempt = attempt.rpartition("-")[2]
    if not (attempt.isdigit() and step.isdigit()):
        message = f"after: found {checkpoint_id!r}, expected ftckpt-<job>-<attempt>-<step>"
        raise ApiError(400, message, param="after")
    return int(attempt), int(step)
