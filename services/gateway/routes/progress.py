"""What happened to a job: events, also as a stream, checkpoints, metrics, logs."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from schemas.lifecycle import TERMINAL
from services.gateway import readmodels, representations
from services.gateway.deps import Caller, Context, Gateway, invalid_cursor, page_size, parse_cursor
from services.gateway.job_responses import Checkpoint, JobEvent, Log, StepList
from services.gateway.logs import log_page
from services.gateway.rates import HeldResponse
from services.gateway.responses import Page
from services.gateway.routes.jobs import job_of

router = APIRouter()

SSE_POLL_SECONDS = 0.25
SSE_KEEPALIVE_SECONDS = 15.0
CHECKPOINT_ID = re.compile(r"^ftckpt-(.+)-([0-9]{1,9})-([0-9]{1,9})$")

Small = Annotated[int, Query(ge=0, lt=2**31)]


@router.get("/jobs/{job_id}/events", response_model=Page[JobEvent])
async def events(
    caller: Caller,
    context: Context,
    request: Request,
    job_id: str,
    after: str | None = None,
    limit: int = 20,
    stream: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Page[JobEvent] | StreamingResponse:
    """List events, newest first as OpenAI does; with `stream=true`, send a server-sent stream from the beginning."""
    await job_of(caller, context, job_id)
    if stream or "text/event-stream" in request.headers.get("accept", ""):
        begin = parse_cursor(last_event_id, "ftevent", param="Last-Event-ID") or 0
        with ExitStack() as held:
            held.enter_context(context.streams.hold(caller.tenant, caller.quotas.streams))
            events = _stream(caller, context, job_id, begin)
            return HeldResponse(events, held.pop_all(), media_type="text/event-stream")
    size = page_size(limit)
    before = parse_cursor(after, "ftevent", param="after")
    database = context.service.database
    if after and not await readmodels.has_event(database, job_id, before):
        raise invalid_cursor(after)
    rows = await readmodels.events_before(database, job_id, before=before, limit=size + 1)
    return representations.page([*map(representations.job_event, rows)], size=size)


async def _stream(caller: Caller, context: Gateway, job_id: str, begin: int) -> AsyncIterator[str]:
    """Ends after the last event of a finished job, or with this process; a client that returns with Last-Event-ID
    misses nothing.
    """
    last, sent_at = begin, time.monotonic()
    while not context.is_stopping:
        job = await job_of(caller, context, job_id)
        events = await readmodels.events_after(context.service.database, job_id, after=last)
        for event in events:
            last, sent_at = event.id, time.monotonic()
            body = representations.job_event(event).model_dump_json()
            yield f"id: ftevent-{event.id}\nevent: {event.type}\ndata: {body}\n\n"
        if not events:
            if job.state in TERMINAL:
                yield "data: [DONE]\n\n"
                return
            if time.monotonic() - sent_at > SSE_KEEPALIVE_SECONDS:
                sent_at = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(SSE_POLL_SECONDS)


@router.get("/jobs/{job_id}/checkpoints")
async def checkpoints(
    caller: Caller, context: Context, job_id: str, after: str | None = None, limit: int = 10
) -> Page[Checkpoint]:
    await job_of(caller, context, job_id)
    size = page_size(limit)
    before = await _cursor(caller, context, job_id, after)
    checkpoints = await readmodels.list_checkpoints(
        context.service.database, job_id, caller.tenant, before=before, limit=size + 1
    )
    return representations.page([*map(representations.checkpoint, checkpoints)], size=size)


@router.get("/jobs/{job_id}/metrics")
async def metrics(
    caller: Caller,
    context: Context,
    job_id: str,
    after_step: Small = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> StepList:
    await job_of(caller, context, job_id)
    steps = await readmodels.list_steps(context.service.database, job_id, after=after_step, limit=limit)
    shown = tuple(map(representations.recorded_step, steps))
    return StepList(object="list", data=shown, has_more=len(steps) == limit)


@router.get("/jobs/{job_id}/logs")
async def logs(
    caller: Caller,
    context: Context,
    job_id: str,
    attempt: Small | None = None,
    node: Small = 0,
    after: Annotated[int, Query(ge=-1, lt=2**31)] = -1,
) -> Log:
    """Chunks of an attempt's log with a number greater than `after`; `next` is what to ask with next time."""
    job = await job_of(caller, context, job_id)
    attempt_number = job.attempt if attempt is None else attempt
    return await log_page(context.service.objects, job_id, attempt_number, node, after)


async def _cursor(caller: Caller, context: Gateway, job_id: str, after: str | None) -> tuple[int, int] | None:
    """Attempt and step of the checkpoint that a page begins after."""
    if after is None:
        return None
    named = CHECKPOINT_ID.fullmatch(after)
    if named is None or named[1] != job_id:
        raise invalid_cursor(after)
    attempt, step = int(named[2]), int(named[3])
    database = context.service.database
    if not await readmodels.has_checkpoint(database, job_id, caller.tenant, attempt, step):
        raise invalid_cursor(after)
    return attempt, step
