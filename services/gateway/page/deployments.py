"""Where models are served: slots, what became of their generations, and what may be done with them."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import Response, StreamingResponse

from services.gateway import deployments, readmodels
from services.gateway.deps import Context, Gateway, parse_cursor
from services.gateway.errors import ApiError
from services.gateway.model import Route
from services.gateway.page import lists, render, streams, swaps
from services.gateway.page.sessions import Present, Sender, Visitor
from services.gateway.page.views import GENERATIONS, ROUTES, Badge, route_view
from services.gateway.readmodels import RouteOrder
from services.gateway.routes import models

router = APIRouter()

ROWS = 50
ORDERS: Mapping[RouteOrder, str] = {"slot": "by slot", "changed": "last changed first"}
Listed = Annotated[lists.Asked[RouteOrder], Depends(lists.asked_by(lists.statuses(ROUTES), ORDERS))]


@router.get("/deployments")
async def slots(request: Request, visitor: Present, context: Context, listed: Listed) -> Response:
    """The tenant's slots."""
    shown = await _slots(visitor, context, listed)
    stream = listed.address(f"{listed.path}/stream")
    return render.page(request, "deployments.html.jinja", visitor, stream=stream, **shown)


async def _slots(visitor: Visitor, context: Gateway, listed: Listed) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant, context.service.database
    rows = await readmodels.list_routes(
        database, tenant, after=listed.after, limit=ROWS + 1, only=listed.only, order=listed.sort
    )
    generations = await deployments.find_generations(database, rows[:ROWS])
    return {
        "routes": [route_view(row) for row in rows[:ROWS]],
        "swaps": {slot: row.swap for slot, row in generations.items()},
        "lines": {row.slot: swaps.step_line(generations.get(row.slot)) for row in rows[:ROWS]},
        "listed": listed,
        "next": listed.address(after=rows[ROWS - 1].slot) if len(rows) > ROWS else None,
        "version": streams.version_of(rows, generations),
        "now": database.now(),
    }


@router.get("/deployments/stream")
async def slots_stream(
    request: Request, visitor: Present, context: Context, listed: Listed
) -> StreamingResponse:
    async def show() -> dict[str, Any]:
        return await _slots(visitor, context, listed)

    return streams.follow_part(
        request, context, visitor, show, element_id="list", template="deployments_parts.html.jinja"
    )


@router.get("/deployments/{slot:path}/history")
async def history(
    request: Request, visitor: Present, context: Context, slot: str, after: str | None = None
) -> Response:
    """What became of each generation of a slot, the newest first."""
    shown = await _history(visitor, context, slot, after)
    stream = None if after else f"/deployments/{quote(slot, safe='')}/history/stream"
    return render.page(request, "deployment.html.jinja", visitor, stream=stream, **shown)


async def _history(visitor: Visitor, context: Gateway, slot: str, after: str | None) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant, context.service.database
    route = await models.find_route(visitor.principal, context, slot)
    before = parse_cursor(after, "generation", param="after")
    rows = await deployments.list_generations(database, tenant, slot, before=before, limit=ROWS + 1)
    shown = rows[:ROWS]
    return {
        "route": route_view(route),
        "generations": [(row, _badge(row, route), swaps.step_line(row)) for row in shown],
        "next": f"generation-{shown[-1].generation}" if len(rows) > ROWS else None,
        "version": streams.version_of(route, rows),
        "now": database.now(),
    }


def _badge(row: deployments.Generation, route: Route) -> Badge:
    """Only the present generation may be ready; of one before it, it is known that it became so."""
    status = row.status(route.generation)
    is_present = row.generation == route.generation
    return ROUTES["ready"] if is_present and status == "ready" else GENERATIONS[status]


@router.get("/deployments/{slot:path}/history/stream")
async def history_stream(
    request: Request, visitor: Present, context: Context, slot: str
) -> StreamingResponse:
    await models.find_route(visitor.principal, context, slot)

    async def show() -> dict[str, Any]:
        return await _history(visitor, context, slot, None)

    return streams.follow_part(
        request, context, visitor, show, element_id="deployment", template="deployment_parts.html.jinja"
    )


@router.post("/deployments/{slot:path}/rollback")
async def rollback(request: Request, sender: Sender, context: Context, slot: str) -> Response:
    await models.rollback(sender.principal, context, slot)
    return render.answer(request, f"Roll-back of {slot} asked.", back="/deployments")


@router.post("/deployments/{slot:path}/remove")
async def remove(
    request: Request,
    sender: Sender,
    context: Context,
    slot: str,
    name: Annotated[str, Form(max_length=300)] = "",
) -> Response:
    """`name`: the slot's, as the person typed it."""
    await models.deployment(sender.principal, context, slot)
    if name.strip() != slot:
        raise ApiError(
            400, f"name: found {name[:80]!r}, expected {slot!r}", param="name", code="invalid_value"
        )
    await models.undeploy(sender.principal, context, slot)
    message = f"Removal of {slot} asked. Nothing answers under this name from now on."
    return render.answer(request, message, back="/deployments")
