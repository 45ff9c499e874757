"""/v1/models, lineage and deployments."""

from typing import Any

from fastapi import APIRouter, Query

from schemas.model import (
    ArchiveModel,
    DeployModel,
    ModelCommand,
    PromoteModel,
    RollbackDeployment,
    UndeployModel,
)
from services.gateway import readmodels, representations
from services.gateway.deps import LARGE_PAGE, Caller, Context, Gateway, invalid_cursor, page_size
from services.gateway.errors import ApiError, not_found, unavailable
from services.gateway.requests import Deploy, Promote

router = APIRouter()


@router.get("/models")
async def list_models(
    caller: Caller,
    context: Context,
    kind: str | None = Query(None, alias="type"),
    base_model: str | None = None,
    dataset_version: str | None = None,
    base_sha: str | None = None,
    after: str | None = None,
    limit: int = LARGE_PAGE,
) -> dict[str, Any]:
    """Base models by name, then the tenant's own versions, newest first.

    `dataset_version` and `base_sha` follow the lineage forward.
    """
    size, database = page_size(limit, at_most=LARGE_PAGE), context.service.database
    version = await _version(caller, context, after)
    wants_bases = kind != "fine-tuned" and not (base_model or dataset_version or base_sha or version)
    bases = await database.fetch(readmodels.LIST_BASES, after or "", size + 1) if wants_bases else []
    rest = 0 if kind == "base" else size + 1 - len(bases)
    of_lineage = base_model, dataset_version, base_sha
    tuned = await database.fetch(readmodels.LIST_MODELS, caller.tenant, *of_lineage, version, rest)
    models = [*map(representations.base_model, bases), *map(representations.fine_tuned_model, tuned)]
    return representations.page(models[:size], has_more=len(models) > size, key=representations.id_of_model)


async def _version(caller: Caller, context: Gateway, after: str | None) -> str | None:
    """The tenant's version behind which a page begins; None where it is a base model, or nothing."""
    database = context.service.database
    if after is None or await database.fetchrow(readmodels.FIND_BASE, after) is not None:
        return None
    rows = await database.fetch(readmodels.VERSIONS_NAMED, caller.tenant, after)
    if not rows:
        raise invalid_cursor(after)
    if len(rows) > 1:
        message = f"after: {after!r} names several versions, expected the `last_id` of a page"
        raise ApiError(400, message, param="after", code="invalid_value")
    version: str = rows[0]["model_id"]
    return version


@router.get("/models/{name:path}/lineage")
async def lineage(caller: Caller, context: Context, name: str) -> dict[str, Any]:
    row = await model_row(caller, context, name)
    return representations.lineage(
        row, await readmodels.find_evaluation(context.service.database, row["model_id"])
    )


@router.post("/models/{name:path}/deploy")
async def deploy(caller: Caller, context: Context, name: str, body: Deploy | None = None) -> dict[str, Any]:
    """Serve a gated version; 400 with the gate's reason where it is not."""
    row = await model_row(caller, context, name)
    slot = (body.slot if body else None) or row["full_name"]
    await _send(context, DeployModel(model_id=row["model_id"], tenant=caller.tenant, slot=slot))
    route = await _route(caller, context, slot)
    if route is None:
        raise unavailable(f"deployment {slot!r} is asked for but not decided yet", code="not_decided_yet")
    return representations.deployment(route)


@router.post("/models/{name:path}/promote")
async def promote(caller: Caller, context: Context, name: str, body: Promote | None = None) -> dict[str, Any]:
    """Approve it for production; 400 without a holdout, unless the approval says so and why."""
    row = await model_row(caller, context, name)
    command = PromoteModel(
        model_id=row["model_id"],
        tenant=caller.tenant,
        approved_by=f"{caller.key_id} of tenant {caller.tenant}",
        **(body or Promote()).model_dump(),
    )
    await _send(context, command)
    return representations.fine_tuned_model(await model_row(caller, context, name))


@router.post("/models/{name:path}/archive")
async def archive(caller: Caller, context: Context, name: str) -> dict[str, Any]:
    row = await model_row(caller, context, name)
    await _send(context, ArchiveModel(model_id=row["model_id"], tenant=caller.tenant))
    return representations.fine_tuned_model(await model_row(caller, context, name))


@router.get("/models/{name:path}")
async def retrieve(caller: Caller, context: Context, name: str) -> dict[str, Any]:
    base = await context.service.database.fetchrow(readmodels.FIND_BASE, name)
    if base is not None:
        return representations.base_model(base)
    return representations.fine_tuned_model(await model_row(caller, context, name))


@router.get("/deployments")
async def deployments(
    caller: Caller, context: Context, after: str = "", limit: int = LARGE_PAGE
) -> dict[str, Any]:
    """By slot."""
    size = page_size(limit, at_most=LARGE_PAGE)
    rows = await context.service.database.fetch(readmodels.LIST_ROUTES, caller.tenant, after, size + 1)
    return representations.page(
        [representations.deployment(row) for row in rows[:size]], has_more=len(rows) > size
    )


@router.get("/deployments/{slot:path}")
async def deployment(caller: Caller, context: Context, slot: str) -> dict[str, Any]:
    return await _deployment(caller, context, slot)


@router.post("/deployments/{slot:path}/rollback")
async def rollback(caller: Caller, context: Context, slot: str) -> dict[str, Any]:
    await _deployment(caller, context, slot)
    await _send(context, RollbackDeployment(slot=slot, tenant=caller.tenant))
    return await _deployment(caller, context, slot)


@router.delete("/deployments/{slot:path}")
async def undeploy(caller: Caller, context: Context, slot: str) -> dict[str, Any]:
    await _deployment(caller, context, slot)
    await _send(context, UndeployModel(slot=slot, tenant=caller.tenant))
    return await _deployment(caller, context, slot)


async def _send(context: Gateway, command: ModelCommand | RollbackDeployment | UndeployModel) -> None:
    async with context.service.unit() as unit:
        command_id = (await context.send(unit, command.tenant, command))[0]
    await context.outcome_of(command_id)


async def model_row(caller: Caller, context: Gateway, name: str) -> Any:
    row = await readmodels.find_model(context.service.database, caller.tenant, name)
    if row is None:
        raise not_found("model", name, param="model")
    return row


async def _deployment(caller: Caller, context: Gateway, slot: str) -> dict[str, Any]:
    row = await _route(caller, context, slot)
    if row is None:
        raise not_found("deployment", slot)
    return representations.deployment(row)


async def _route(caller: Caller, context: Gateway, slot: str) -> Any:
    return await context.service.database.fetchrow(readmodels.FIND_ROUTE, caller.tenant, slot)
