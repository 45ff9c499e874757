"""Sweeps: the list, and one with its trials, live, with pictures of what was tried."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from schemas.sweep import SweepState, TrialState
from services.gateway.deps import Context, Gateway, invalid_cursor
from services.gateway.page import formats, lists, render, streams, sweep_pictures
from services.gateway.page.sessions import Present, Sender, Visitor
from services.gateway.page.views import GATES, Badge
from services.gateway.routes import sweeps
from services.gateway.routes.sweeps import sweep_of
from services.gateway.sweeps import (
    SweepOrder,
    TrialRow,
    best_of,
    find_list_version,
    find_sweep,
    find_version,
    list_sweeps,
    list_trials,
    representation,
)

router = APIRouter()

ROWS = 50
TRIALS = 100
"""Trials of a page of a sweep's table."""
Begin = Annotated[int, Query(ge=0, lt=2**31)]
"""Trials before those of the page."""
STATES: Mapping[SweepState, Badge] = {
    SweepState.RUNNING: Badge("running", "active", "play"),
    SweepState.STOPPING: Badge("stopping", "active", "arrow"),
    SweepState.SUCCEEDED: Badge("succeeded", "good", "check"),
    SweepState.FAILED: Badge("failed", "bad", "cross"),
    SweepState.CANCELLED: Badge("cancelled", "idle", "slashed-ring"),
}
ORDERS: Mapping[SweepOrder, str] = {
    "created": "newest first",
    "loss": "lowest loss first",
    "cost": "most expensive first",
}
Listed = Annotated[lists.Asked[SweepOrder], Depends(lists.asked_by(lists.statuses(STATES), ORDERS))]
TRIAL_STATES: Mapping[TrialState, Badge] = {
    TrialState.RUNNING: Badge("running", "active", "play"),
    TrialState.COMPLETED: Badge("completed", "good", "check"),
    TrialState.PRUNED: Badge("pruned", "idle", "half-disc"),
    TrialState.DUPLICATE: Badge("duplicate", "idle", "dashed-ring"),
    TrialState.FAILED: Badge("failed", "bad", "cross"),
    TrialState.CANCELLED: Badge("cancelled", "idle", "slashed-ring"),
}


@router.get("/sweeps")
async def sweeps_page(request: Request, visitor: Present, context: Context, listed: Listed) -> Response:
    """The tenant's sweeps."""
    tenant, database = visitor.principal.tenant, context.service.database
    if listed.after and await find_sweep(database, listed.after, tenant) is None:
        raise invalid_cursor(listed.after)
    shown = await _list(visitor, context, listed)
    return render.page(request, "sweeps.html.jinja", visitor, stream=listed.stream, **shown)


async def _list(visitor: Visitor, context: Gateway, listed: Listed) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant, context.service.database
    rows = await list_sweeps(
        database, tenant, after=listed.after, limit=ROWS + 1, only=listed.only, order=listed.sort
    )
    return {
        "sweeps": await sweeps.with_trials(context, tenant, rows[:ROWS]),
        "created": {row.sweep_id: row.created_at for row in rows},
        "states": STATES,
        "gates": GATES,
        "listed": listed,
        "next": listed.address(after=rows[ROWS - 1].sweep_id) if len(rows) > ROWS else None,
        "now": database.now(),
    }


@router.get("/sweeps/stream")
async def list_stream(
    request: Request, visitor: Present, context: Context, listed: Listed
) -> StreamingResponse:
    tenant, database = visitor.principal.tenant, context.service.database

    async def look(last: str) -> streams.Changes:
        shown = await find_list_version(database, tenant, limit=ROWS, only=listed.only, order=listed.sort)
        version = streams.version_of(shown)
        if version == last:
            return streams.Changes(last)
        html = render.text("sweeps_parts.html.jinja", **await _list(visitor, context, listed))
        return streams.Changes(version, (streams.part("list", html),))

    return streams.follow(request, context, visitor, look)


@router.get("/sweeps/{sweep_id}")
async def sweep(
    request: Request, visitor: Present, context: Context, sweep_id: str, begin: Begin = 0
) -> Response:
    shown = await _shown(visitor, context, sweep_id, begin)
    stream = None if shown["is_over"] else f"/sweeps/{sweep_id}/stream?begin={begin}"
    return render.page(request, "sweep.html.jinja", visitor, stream=stream, **shown)


async def _shown(visitor: Visitor, context: Gateway, sweep_id: str, begin: int) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant, context.service.database
    row = await sweep_of(visitor.principal, context, sweep_id)
    trials = await list_trials(database, [sweep_id], tenant)
    best = best_of(row, trials)
    return {
        "sweep": representation(row, trials),
        "is_over": row.state not in (SweepState.RUNNING, SweepState.STOPPING),
        "sweep_badge": STATES[row.state],
        "gate": GATES.get(best.verdict or "") if best and row.state is SweepState.SUCCEEDED else None,
        "created_at": row.created_at,
        "best": best,
        "trials": sorted(trials, key=_rank)[begin : begin + TRIALS],
        "begin": begin,
        "next": begin + TRIALS if len(trials) > begin + TRIALS else None,
        "num_trials": len(trials),
        "trial_states": TRIAL_STATES,
        "course": sweep_pictures.course(trials),
        "parallel": sweep_pictures.parallel(row.spec.parameters, trials),
        "importances": sweep_pictures.importances(row.spec.parameters, trials),
        "num_completed": sum(each.state is TrialState.COMPLETED for each in trials),
        "pictures": sweep_pictures,
        "now": database.now(),
    }


def _rank(row: TrialRow) -> tuple[int, float, int]:
    """What runs comes first, then what was trained to its end, the best first, then the others."""
    order = {TrialState.RUNNING: 0, TrialState.COMPLETED: 1, TrialState.PRUNED: 2}
    return order.get(row.state, 3), row.valid_loss or 0.0, row.number


@router.get("/sweeps/{sweep_id}/stream")
async def stream(
    request: Request, visitor: Present, context: Context, sweep_id: str, begin: Begin = 0
) -> StreamingResponse:
    await sweep_of(visitor.principal, context, sweep_id)

    async def look(last: str) -> streams.Changes:
        version = await find_version(context.service.database, sweep_id, visitor.principal.tenant) or ""
        if version == last:
            return streams.Changes(last)
        shown = await _shown(visitor, context, sweep_id, begin)
        html = render.text("sweep_parts.html.jinja", visitor=visitor, **shown)
        return streams.Changes(version, (streams.part("sweep", html),))

    return streams.follow(request, context, visitor, look)


@router.post("/sweeps/{sweep_id}/cancel")
async def cancel(request: Request, sender: Sender, context: Context, sweep_id: str) -> Response:
    """What the route of programs does; the page itself changes by events."""
    await sweeps.cancel(sender.principal, context, sweep_id)
    if "hx-request" not in request.headers:
        return RedirectResponse(f"/sweeps/{sweep_id}", 303, render.HEADERS)
    message = f"Cancel asked. {formats.clock(context.service.database.now())} UTC"
    html = render.text("answer.html.jinja", message=message)
    return Response(html, media_type="text/html", headers=render.HEADERS)
