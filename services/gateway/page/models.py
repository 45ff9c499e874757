"""Models: versions with their lineage, and what may be done with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import Response, StreamingResponse

from services.gateway import job_readmodels, readmodels
from services.gateway.deps import Context, Gateway
from services.gateway.model import ModelVersion
from services.gateway.page import ask, lineage, lists, render, streams
from services.gateway.page.sessions import Present, Sender, Visitor
from services.gateway.page.views import GATES, STAGES, model_view, route_view
from services.gateway.readmodels import ModelOrder
from services.gateway.requests import Deploy
from services.gateway.routes import models
from services.gateway.routes.models import model_version

router = APIRouter()

ROWS = 50
BASES = 100
CHILDREN = 6
"""Jobs started from a version that its lineage shows."""


ORDERS: Mapping[ModelOrder, str] = {"created": "newest first", "name": "by name"}


@dataclass(frozen=True)
class Asked(lists.Asked[ModelOrder]):
    base: str
    """The base model of the versions; empty for all."""

    @property
    def named(self) -> dict[str, str | None]:
        return {"base": self.base, **super().named}


def asked(
    listed: Annotated[lists.Asked[ModelOrder], Depends(lists.asked_by(lists.statuses(STAGES), ORDERS))],
    base: str = "",
) -> Asked:
    return Asked(**vars(listed), base=base)


Listed = Annotated[Asked, Depends(asked)]


@router.get("/models")
async def versions(request: Request, visitor: Present, context: Context, listed: Listed) -> Response:
    """The tenant's versions, and the base models on the first page."""
    if listed.after:
        await model_version(visitor.principal, context, listed.after)
    shown = await _versions(visitor, context, listed)
    return render.page(request, "models.html.jinja", visitor, stream=listed.stream, **shown)


async def _versions(visitor: Visitor, context: Gateway, listed: Listed) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant, context.service.database
    rows = await readmodels.list_models(
        database,
        tenant,
        base_model=listed.base or None,
        dataset_version=None,
        base_sha=None,
        after=listed.after,
        limit=ROWS + 1,
        only=listed.only,
        order=listed.sort,
    )
    is_whole = not (listed.after or listed.q)
    bases = await readmodels.list_bases(database, after="", limit=BASES) if is_whole else []
    outcomes = await job_readmodels.find_outcomes(database, [row.model_id for row in rows[:ROWS]])
    return {
        "models": [model_view(row) for row in rows[:ROWS]],
        "gates": {row.model_id: GATES[outcomes.get(row.model_id, "pending")] for row in rows[:ROWS]},
        "bases": bases,
        "listed": listed,
        "next": listed.address(after=rows[ROWS - 1].model_id) if len(rows) > ROWS else None,
        "version": streams.version_of(rows, bases, outcomes),
        "now": database.now(),
    }


@router.get("/models/stream")
async def list_stream(
    request: Request, visitor: Present, context: Context, listed: Listed
) -> StreamingResponse:
    async def show() -> dict[str, Any]:
        return await _versions(visitor, context, listed)

    return streams.follow_part(
        request, context, visitor, show, element_id="list", template="models_parts.html.jinja"
    )


@router.get("/models/{model_id}")
async def version(request: Request, visitor: Present, context: Context, model_id: str) -> Response:
    """A version with its lineage, one step each way."""
    row, shown = await _version(visitor, context, model_id)
    sides = await ask.sides_of(context, row, shown["rows_of_routes"])
    stream = f"/models/{row.model_id}/stream"
    return render.page(request, "model.html.jinja", visitor, stream=stream, sides=sides, ask=ask, **shown)


async def _version(visitor: Visitor, context: Gateway, model_id: str) -> tuple[ModelVersion, dict[str, Any]]:
    tenant, database = visitor.principal.tenant, context.service.database
    row = await model_version(visitor.principal, context, model_id)
    verdict = await readmodels.find_evaluation(database, row.model_id)
    routes = await job_readmodels.list_routes_of_model(database, tenant, row.model_id)
    job = await readmodels.find_job(database, row.job_id, tenant)
    children = await job_readmodels.list_jobs_started_from(database, tenant, row.job_id, limit=CHILDREN + 1)
    return row, {
        "model": model_view(row),
        "verdict": verdict,
        "gate": GATES[verdict.outcome] if verdict else GATES["pending"],
        "rows_of_routes": routes,
        "routes": [route_view(each) for each in routes],
        "lineage": lineage.drawn(row, job, routes, children, at_most=CHILDREN),
        "version": streams.version_of(
            row,
            verdict and (verdict.eval_id, verdict.outcome),
            routes,
            job and job.state,
            [(each.job_id, each.state) for each in children],
        ),
        "now": database.now(),
    }


@router.get("/models/{model_id}/stream")
async def version_stream(
    request: Request, visitor: Present, context: Context, model_id: str
) -> StreamingResponse:
    """What is known of it, and who would answer a question."""
    await model_version(visitor.principal, context, model_id)

    async def look(last: str) -> streams.Changes:
        row, shown = await _version(visitor, context, model_id)
        sides = await ask.sides_of(context, row, shown["rows_of_routes"])
        version = f"{shown['version']}.{streams.version_of(sides)}"
        known, _, known_sides = last.partition(".")
        parts = []
        if not version.startswith(f"{known}."):
            html = render.text("model_parts.html.jinja", visitor=visitor, **shown)
            parts.append(streams.part("model", html))
        if not version.endswith(f".{known_sides}"):
            parts += [streams.part(*each) for each in ask.parts_of(sides).items()]
        return streams.Changes(version, tuple(parts))

    return streams.follow(request, context, visitor, look)


@router.post("/models/{model_id}/deploy")
async def deploy(
    request: Request,
    sender: Sender,
    context: Context,
    model_id: str,
    slot: Annotated[str, Form(max_length=300)] = "",
) -> Response:
    """`slot`: another name than its own that it answers under."""
    body = Deploy(slot=slot.strip() or None)
    deployment = await models.deploy(sender.principal, context, model_id, body)
    return render.answer(request, f"Deployment to {deployment.slot} asked.", back="/deployments")
