"""/v1/sweeps: several configurations of one job, each trained as a job, and the best of them to the gate."""

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse

from schemas.sweep import CancelSweep, SearchSpec, SubmitSweep, SweepSpec, SweepState, check_sweep
from services.gateway import decide, responses, tables
from services.gateway.access import Principal
from services.gateway.deps import (
    Caller,
    Context,
    Gateway,
    invalid_cursor,
    page_size,
)
from services.gateway.errors import ApiError, not_found
from services.gateway.idempotency import Answer, answer_once
from services.gateway.model import JsonObject
from services.gateway.representations import page
from services.gateway.requests import CreateSweep
from services.gateway.responses import Page
from services.gateway.routes.jobs import Prepared, prepare
from services.gateway.sweeps import (
    SweepRow,
    add_sweep,
    find_sweep,
    list_sweeps,
    list_trials,
    representation,
)
from shared.errors import Refused
from shared.failpoints import failpoint
from shared.messaging.unit import Unit

router = APIRouter()


@router.post("/sweeps", response_model=responses.Sweep)
async def create(
    caller: Caller,
    context: Context,
    request: Request,
    body: CreateSweep,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
    dry_run: bool = False,
) -> JSONResponse:
    """One dataset for all trials, and the sweep, which begins them. With `dry_run` nothing begins: the answer is the
    sweep as it would be, or what would refuse it."""
    if dry_run:
        return JSONResponse(await context.dry_run(lambda unit: _submit(unit, caller, context, body)))
    digest = hashlib.sha256(await request.body()).hexdigest()
    return (await submit(caller, context, body, digest=digest, idempotency_key=idempotency_key)).response()


async def submit(
    caller: Principal, context: Gateway, body: CreateSweep, *, digest: str, idempotency_key: str | None
) -> Answer:
    """Answer with a new sweep; of several requests with the same key and digest with one sweep."""
    async with context.service.unit(correlation_id=uuid4().hex) as unit:
        work = partial(_submit, unit, caller, context, body)
        answer = await answer_once(unit.conn, caller.tenant, idempotency_key, digest, work)
    failpoint("gateway.accepted")
    return answer


@dataclass(frozen=True)
class PreparedSweep:
    """What a request asks for."""

    job: Prepared
    spec: SweepSpec


async def prepare_sweep(unit: Unit, caller: Principal, body: CreateSweep) -> PreparedSweep:
    """Look at all that is looked at before a sweep is taken; nothing is written. Raises Refused."""
    try:
        prepared = await prepare(unit, caller, body.job)
        decide.refuse_final(prepared.obstacles)
    except Refused as error:
        raise Refused(
            error.code, f"job: {error.message}", param=error.param and f"job.{error.param}"
        ) from error
    search = body.model_dump(include={*SearchSpec.model_fields})
    spec = SweepSpec(job=prepared.submit.spec, **search)
    if refusal := check_sweep(spec):
        raise Refused(refusal.code, refusal.message, param=refusal.param)
    return PreparedSweep(prepared, spec)


async def _submit(unit: Unit, caller: Principal, context: Gateway, body: CreateSweep) -> JsonObject:
    prepared = await prepare_sweep(unit, caller, body)
    command = SubmitSweep(
        sweep_id=f"sweep-{uuid4().hex[:16]}",
        tenant=caller.tenant,
        dataset_id=prepared.job.submit.dataset_id,
        spec=prepared.spec,
    )
    for dataset in prepared.job.datasets:
        await tables.note_dataset(unit.conn, dataset)
    await context.send(unit, caller.tenant, *prepared.job.datasets, command)
    await add_sweep(unit.conn, command, body.name, now=unit.now)
    row = await find_sweep(unit.conn, command.sweep_id, caller.tenant)
    assert row is not None, "it was added a moment ago"
    return representation(row, []).model_dump(mode="json")


@router.get("/sweeps")
async def list_all(
    caller: Caller, context: Context, after: str | None = None, limit: int = 20
) -> Page[responses.Sweep]:
    """List sweeps, the newest first, without their trials."""
    size, database = page_size(limit), context.service.database
    if after is not None and await find_sweep(database, after, caller.tenant) is None:
        raise invalid_cursor(after)
    rows = await list_sweeps(database, caller.tenant, after=after, limit=size + 1)
    return page(await with_trials(context, caller.tenant, rows), size=size)


async def with_trials(context: Gateway, tenant: str, rows: list[SweepRow]) -> list[responses.Sweep]:
    """Return sweeps as they are listed."""
    trials = await list_trials(context.service.database, [row.sweep_id for row in rows], tenant)
    return [representation(row, [each for each in trials if each.sweep_id == row.sweep_id]) for row in rows]


@router.get("/sweeps/{sweep_id}")
async def retrieve(caller: Caller, context: Context, sweep_id: str) -> responses.Sweep:
    row = await sweep_of(caller, context, sweep_id)
    trials = await list_trials(context.service.database, [sweep_id], caller.tenant)
    return representation(row, trials, has_trials=True)


@router.post("/sweeps/{sweep_id}/cancel")
async def cancel(caller: Caller, context: Context, sweep_id: str) -> responses.Sweep:
    """Begin no more trials and cancel those that run; none goes to the gate."""
    row = await sweep_of(caller, context, sweep_id)
    if row.state not in (SweepState.RUNNING, SweepState.STOPPING):
        message = f"sweep {sweep_id!r} is {row.state}; expected one that runs"
        raise ApiError(400, message, param="sweep_id", code="sweep_not_active")
    async with context.service.unit() as unit:
        command = CancelSweep(sweep_id=sweep_id, tenant=caller.tenant)
        command_id = (await context.send(unit, caller.tenant, command))[0]
    await context.outcome_of(command_id)
    return await retrieve(caller, context, sweep_id)


async def sweep_of(caller: Principal, context: Gateway, sweep_id: str) -> SweepRow:
    row = await find_sweep(context.service.database, sweep_id, caller.tenant)
    if row is None:
        raise not_found("sweep", sweep_id, param="sweep_id")
    return row
