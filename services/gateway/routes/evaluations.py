"""What the gate found about a model, and asking for it once more."""

import hashlib
from typing import Annotated

from fastapi import APIRouter, Header

from schemas.evaluation import ReevaluateModel
from schemas.layout import ItemGroup
from services.gateway import readmodels, representations, responses
from services.gateway.deps import Admin, Caller, Context, Gateway
from services.gateway.errors import ApiError, not_found, unavailable
from services.gateway.idempotency import answer_once
from services.gateway.items import item_page, log_text
from services.gateway.model import Evaluation, JsonObject, ModelVersion
from services.gateway.responses import EvaluationItem, EvaluationLog, Page
from services.gateway.routes.models import model_version

router = APIRouter()


@router.get("/models/{name:path}/evaluation")
async def evaluation(caller: Caller, context: Context, name: str) -> responses.Evaluation:
    """The newest one, which may still be running."""
    return representations.evaluation(await _newest(caller, context, name))


@router.get("/models/{name:path}/evaluation/items", response_model_exclude_unset=True)
async def items(
    caller: Caller, context: Context, name: str, after: str | None = None, limit: int = 20
) -> Page[EvaluationItem]:
    """List items of the tenant's own holdout, failing ones first. The suites' questions are the operator's."""
    verdict = await _newest(caller, context, name)
    return await item_page(context.service.objects, verdict, "holdout", after=after, limit=limit)


@router.get("/models/{name:path}/evaluation/log")
async def log(caller: Caller, context: Context, name: str) -> EvaluationLog:
    """What the scoring process wrote."""
    verdict = await _newest(caller, context, name)
    text = await log_text(context.service.objects, verdict)
    if text is None:
        raise not_found("log of an evaluation of model", name)
    return EvaluationLog(object="evaluation.log", eval_id=verdict.eval_id, text=text)


@router.get("/admin/evaluations/{eval_id}/items", response_model_exclude_unset=True)
async def all_items(
    admin: Admin,
    context: Context,
    eval_id: str,
    group: ItemGroup = "suites",
    after: str | None = None,
    limit: int = 20,
) -> Page[EvaluationItem]:
    """List items for the operator, those of the suites too."""
    verdict = await readmodels.get_evaluation(context.service.database, eval_id)
    if verdict is None:
        raise not_found("evaluation", eval_id)
    return await item_page(context.service.objects, verdict, group, after=after, limit=limit)


@router.post("/models/{name:path}/evaluate")
async def evaluate(
    caller: Caller,
    context: Context,
    name: str,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> responses.Evaluation:
    """Run the gate once more, with the suites of now; the running evaluation. A failed one withdraws the model."""
    version = await model_version(caller, context, name)
    _require_servable(version)
    command_id = await _ask(caller, context, version.model_id, idempotency_key)
    started = await context.outcome_of(command_id)
    if started is None:
        raise unavailable(f"an evaluation of {name!r} is asked for but not begun yet", code="not_decided_yet")
    running = await readmodels.get_evaluation(context.service.database, str(started["eval_id"]))
    assert running is not None, "its fact was projected together with the outcome"
    return representations.evaluation(running)


async def _newest(caller: Caller, context: Gateway, name: str) -> Evaluation:
    version = await model_version(caller, context, name)
    verdict = await readmodels.find_evaluation(context.service.database, version.model_id)
    if verdict is None:
        raise not_found("evaluation of model", name)
    return verdict


def _require_servable(version: ModelVersion) -> None:
    """Raises ApiError where no verdict could change anything."""
    if version.stage == "archived":
        raise ApiError(400, f"model {version.full_name!r} is archived", param="model", code="archived")
    if version.is_stale:
        message = (
            f"model {version.full_name!r} is stale: {version.base_model} has other files now, so it cannot be served "
            "whatever an evaluation finds. Train it again"
        )
        raise ApiError(400, message, param="model", code="stale")


async def _ask(caller: Caller, context: Gateway, model_id: str, key: str | None) -> str:
    """The command's id; that of the first request where the key was used before."""
    digest = hashlib.sha256(f"evaluate {model_id}".encode()).hexdigest()

    async def ask() -> JsonObject:
        command = ReevaluateModel(model_id=model_id, tenant=caller.tenant)
        return {"command_id": (await context.send(unit, caller.tenant, command))[0]}

    async with context.service.unit() as unit:
        answer = await answer_once(unit.conn, caller.tenant, key, digest, ask)
    return str(answer.body["command_id"])
