"""/v1/models, lineage and deployments."""

from fastapi import APIRouter, Query

from schemas.model import (
    ArchiveModel,
    DeleteModel,
    DeployModel,
    ModelCommand,
    PromoteModel,
    RollbackDeployment,
    UndeployModel,
)
from services.gateway import readmodels, representations
from services.gateway.deployment_responses import Deployment, DeploymentGeneration
from services.gateway.deployments import (
    find_generations,
    generation_representation,
    list_generations,
    representation,
)
from services.gateway.deps import (
    LARGE_PAGE,
    Caller,
    Context,
    Gateway,
    invalid_cursor,
    page_size,
    parse_cursor,
)
from services.gateway.errors import ApiError, not_found, unavailable
from services.gateway.model import ModelVersion, Route
from services.gateway.requests import Deploy, Promote
from services.gateway.responses import (
    AnyModel,
    DeletedModel,
    FineTunedModel,
    Lineage,
    ModelPage,
    Page,
)

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
) -> ModelPage:
    """Base models by name, then the tenant's own versions, newest first.

    `dataset_version` and `base_sha` follow the lineage forward.
    """
    size, database = page_size(limit, at_most=LARGE_PAGE), context.service.database
    version = await _version(caller, context, after)
    wants_bases = kind != "fine-tuned" and not (base_model or dataset_version or base_sha or version)
    bases = await readmodels.list_bases(database, after=after or "", limit=size + 1) if wants_bases else []
    tuned = await readmodels.list_models(
        database,
        caller.tenant,
        base_model=base_model,
        dataset_version=dataset_version,
        base_sha=base_sha,
        after=version,
        limit=0 if kind == "base" else size + 1 - len(bases),
    )
    models: list[AnyModel] = [*map(representations.base_model, bases)]
    models += map(representations.fine_tuned_model, tuned)
    return representations.model_page(models, size=size)


async def _version(caller: Caller, context: Gateway, after: str | None) -> str | None:
    """The tenant's version behind which a page begins; None where it is a base model, or nothing."""
    database = context.service.database
    if after is None or await readmodels.find_base(database, after) is not None:
        return None
    versions = await readmodels.versions_named(database, caller.tenant, after)
    if not versions:
        raise invalid_cursor(after)
    if len(versions) > 1:
        message = f"after: {after!r} names several versions, expected the `last_id` of a page"
        raise ApiError(400, message, param="after", code="invalid_value")
    return versions[0]


@router.get("/models/{name:path}/lineage")
async def lineage(caller: Caller, context: Context, name: str) -> Lineage:
    version = await model_version(caller, context, name)
    verdict = await readmodels.find_evaluation(context.service.database, version.model_id)
    return representations.lineage(version, verdict)


@router.post("/models/{name:path}/deploy")
async def deploy(caller: Caller, context: Context, name: str, body: Deploy | None = None) -> Deployment:
    """Serve a gated version; 400 with the gate's reason where it is not."""
    version = await model_version(caller, context, name)
    slot = (body.slot if body else None) or version.full_name
    await _send(context, DeployModel(model_id=version.model_id, tenant=caller.tenant, slot=slot))
    route = await readmodels.find_route(context.service.database, caller.tenant, slot)
    if route is None:
        raise unavailable(f"deployment {slot!r} is asked for but not decided yet", code="not_decided_yet")
    return (await _represented(context, [route]))[0]


@router.post("/models/{name:path}/promote")
async def promote(caller: Caller, context: Context, name: str, body: Promote | None = None) -> FineTunedModel:
    """Approve it for production; 400 without a holdout, unless the approval says so and why."""
    version = await model_version(caller, context, name)
    command = PromoteModel(
        model_id=version.model_id,
        tenant=caller.tenant,
        approved_by=f"{caller.key_id} of tenant {caller.tenant}",
        **(body or Promote()).model_dump(),
    )
    await _send(context, command)
    return representations.fine_tuned_model(await model_version(caller, context, name))


@router.post("/models/{name:path}/archive")
async def archive(caller: Caller, context: Context, name: str) -> FineTunedModel:
    version = await model_version(caller, context, name)
    await _send(context, ArchiveModel(model_id=version.model_id, tenant=caller.tenant))
    return representations.fine_tuned_model(await model_version(caller, context, name))


@router.get("/models/{name:path}")
async def retrieve(caller: Caller, context: Context, name: str) -> AnyModel:
    base = await readmodels.find_base(context.service.database, name)
    if base is not None:
        return representations.base_model(base)
    return representations.fine_tuned_model(await model_version(caller, context, name))


@router.delete("/models/{name:path}")
async def delete(caller: Caller, context: Context, name: str) -> DeletedModel:
    """Delete the bytes of a version. The registry refuses it as `not_available_yet`; `archive` ends its use."""
    version = await model_version(caller, context, name)
    is_answered = await _send(context, DeleteModel(model_id=version.model_id, tenant=caller.tenant))
    return DeletedModel(id=name, object="model", deleted=is_answered)


@router.get("/deployments")
async def deployments(
    caller: Caller, context: Context, after: str = "", limit: int = LARGE_PAGE
) -> Page[Deployment]:
    """List deployments by slot."""
    size = page_size(limit, at_most=LARGE_PAGE)
    routes = await readmodels.list_routes(
        context.service.database, caller.tenant, after=after, limit=size + 1
    )
    return representations.page(await _represented(context, routes), size=size)


@router.get("/deployments/{slot:path}/history")
async def history(
    caller: Caller, context: Context, slot: str, after: str | None = None, limit: int = 20
) -> Page[DeploymentGeneration]:
    """List what became of each generation of a slot, with the times of its swap, the newest first."""
    route = await find_route(caller, context, slot)
    size, before = page_size(limit), parse_cursor(after, "generation", param="after")
    rows = await list_generations(
        context.service.database, caller.tenant, slot, before=before, limit=size + 1
    )
    return representations.page([generation_representation(row, route.generation) for row in rows], size=size)


@router.get("/deployments/{slot:path}")
async def deployment(caller: Caller, context: Context, slot: str) -> Deployment:
    return await _deployment(caller, context, slot)


@router.post("/deployments/{slot:path}/rollback")
async def rollback(caller: Caller, context: Context, slot: str) -> Deployment:
    await _deployment(caller, context, slot)
    await _send(context, RollbackDeployment(slot=slot, tenant=caller.tenant))
    return await _deployment(caller, context, slot)


@router.delete("/deployments/{slot:path}")
async def undeploy(caller: Caller, context: Context, slot: str) -> Deployment:
    await _deployment(caller, context, slot)
    await _send(context, UndeployModel(slot=slot, tenant=caller.tenant))
    return await _deployment(caller, context, slot)


async def _send(context: Gateway, command: ModelCommand | RollbackDeployment | UndeployModel) -> bool:
    """Whether it was answered in time. Raises ApiError where it is refused."""
    async with context.service.unit() as unit:
        command_id = (await context.send(unit, command.tenant, command))[0]
    return await context.outcome_of(command_id) is not None


async def model_version(caller: Caller, context: Gateway, name: str) -> ModelVersion:
    version = await readmodels.find_model(context.service.database, caller.tenant, name)
    if version is None:
        raise not_found("model", name, param="model")
    return version


async def _deployment(caller: Caller, context: Gateway, slot: str) -> Deployment:
    return (await _represented(context, [await find_route(caller, context, slot)]))[0]


async def _represented(context: Gateway, routes: list[Route]) -> list[Deployment]:
    generations = await find_generations(context.service.database, routes)
    return [representation(route, generations.get(route.slot)) for route in routes]


async def find_route(caller: Caller, context: Gateway, slot: str) -> Route:
    """Return the tenant's slot. Raises ApiError where there is none."""
    route = await readmodels.find_route(context.service.database, caller.tenant, slot)
    if route is None:
        raise not_found("deployment", slot)
    return route
