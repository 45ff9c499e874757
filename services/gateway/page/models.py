"""Models and where they are served: versions with their lineage, deployments, and what may be done with both."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from services.gateway import job_readmodels, readmodels
from services.gateway.deps import Context
from services.gateway.errors import ApiError
from services.gateway.page import ask, render
from services.gateway.page.sessions import Present, Sender
from services.gateway.page.views import GATES, model_view, route_view
from services.gateway.routes import models
from services.gateway.routes.models import model_version

router = APIRouter()

ROWS = 50
BASES = 100


@router.get("/models")
async def versions(
    request: Request, visitor: Present, context: Context, base: str | None = None, after: str | None = None
) -> Response:
    """The tenant's versions, newest first, and the base models on the first page."""
    tenant, database = visitor.principal.tenant, context.service.database
    if after is not None:
        await model_version(visitor.principal, context, after)
    rows = await readmodels.list_models(
        database,
        tenant,
        base_model=base or None,
        dataset_version=None,
        base_sha=None,
        after=after,
        limit=ROWS + 1,
    )
    bases = [] if after else await readmodels.list_bases(database, after="", limit=BASES)
    following = f"/models?base={base or ''}&after={rows[ROWS - 1].model_id}" if len(rows) > ROWS else None
    shown = [model_view(row) for row in rows[:ROWS]]
    return render.page(
        request,
        "models.html.jinja",
        visitor,
        models=shown,
        bases=bases,
        base=base,
        next=following,
        now=database.now(),
    )


@router.get("/models/{model_id}")
async def version(request: Request, visitor: Present, context: Context, model_id: str) -> Response:
    """A version with its lineage, one step each way."""
    tenant, database = visitor.principal.tenant, context.service.database
    row = await model_version(visitor.principal, context, model_id)
    verdict = await readmodels.find_evaluation(database, row.model_id)
    routes = await job_readmodels.list_routes_of_model(database, tenant, row.model_id)
    sides = await ask.sides_of(context, row, routes)
    return render.page(
        request,
        "model.html.jinja",
        visitor,
        model=model_view(row),
        verdict=verdict,
        gate=GATES[verdict.outcome] if verdict else GATES["pending"],
        routes=[route_view(each) for each in routes],
        sides=sides,
        ask=ask,
        now=database.now(),
    )


@router.post("/models/{model_id}/deploy")
async def deploy(request: Request, sender: Sender, context: Context, model_id: str) -> Response:
    deployment = await models.deploy(sender.principal, context, model_id)
    return _done(request, f"Deployment to {deployment.slot} asked.")


@router.get("/deployments")
async def deployments(request: Request, visitor: Present, context: Context, after: str = "") -> Response:
    """Slots by name."""
    tenant, database = visitor.principal.tenant, context.service.database
    rows = await readmodels.list_routes(database, tenant, after=after, limit=ROWS + 1)
    following = rows[ROWS - 1].slot if len(rows) > ROWS else None
    shown = [route_view(row) for row in rows[:ROWS]]
    return render.page(
        request, "deployments.html.jinja", visitor, routes=shown, next=following, now=database.now()
    )


@router.post("/deployments/{slot:path}/rollback")
async def rollback(request: Request, sender: Sender, context: Context, slot: str) -> Response:
    await models.rollback(sender.principal, context, slot)
    return _done(request, f"Roll-back of {slot} asked.")


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
    return _done(request, f"Removal of {slot} asked. Nothing answers under this name from now on.")


def _done(request: Request, message: str) -> Response:
    if "hx-request" not in request.headers:
        return RedirectResponse("/deployments", 303, render.HEADERS)
    html = render.text("answer.html.jinja", message=message)
    return Response(html, media_type="text/html", headers=render.HEADERS)
