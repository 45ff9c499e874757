"""The gate of a model: what was asked of how many items, how the candidate did beside its base, and the verdict."""

import re
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from services.gateway import job_readmodels, model, readmodels
from services.gateway.deps import Context, Gateway
from services.gateway.errors import not_found
from services.gateway.items import item_page
from services.gateway.page import render, streams, verdicts
from services.gateway.page.sessions import Present, Sender
from services.gateway.page.views import GATES
from services.gateway.requests import Promote
from services.gateway.responses import EvaluationItem
from services.gateway.routes import evaluations, models
from services.gateway.routes.models import model_version

router = APIRouter()

ITEMS = 20
EvaluationId = Annotated[str, Query(max_length=300)]
NUMBERED = re.compile(r"item-([0-9]{1,7})")


@router.get("/models/{model_id}/gate")
async def gate(
    request: Request,
    visitor: Present,
    context: Context,
    model_id: str,
    after: str | None = None,
    item: Annotated[str, Query(max_length=300)] = "",
    evaluation: EvaluationId = "",
) -> Response:
    """`item`: one of the holdout, whose page is shown where `after` names none. `evaluation`: an earlier one."""
    after = after or before_page_of(item)
    version = await model_version(visitor.principal, context, model_id)
    shown = await _verdict(context, version, evaluation)
    verdict: model.Evaluation | None = shown["verdict"]
    items: list[dict[str, Any]] = []
    following = None
    earlier = f"evaluation={quote(evaluation, safe='')}&" if evaluation else ""
    if verdict is not None:
        page = await item_page(context.service.objects, verdict, "holdout", after=after, limit=ITEMS)
        items = [_item(each) for each in page.data]
        following = f"?{earlier}after={page.last_id}#items" if page.has_more else None
    return render.page(
        request,
        "gate.html.jinja",
        visitor,
        items=items,
        next=following,
        after=after,
        item=item,
        stream=f"/models/{version.model_id}/gate/stream?{earlier.rstrip('&')}".rstrip("?"),
        **shown,
    )


def before_page_of(item_id: str) -> str | None:
    """Return the item that the item's page begins after; None for the first page, and where the id has no number."""
    match = NUMBERED.fullmatch(item_id)
    skipped = (max(int(match[1]), 1) - 1) // ITEMS * ITEMS if match else 0
    return f"item-{skipped}" if skipped else None


async def _verdict(context: Gateway, version: model.ModelVersion, eval_id: str) -> dict[str, Any]:
    """eval_id: of the evaluation to show; empty for the newest one. Raises ApiError where it is not the model's."""
    database = context.service.database
    history = await job_readmodels.list_evaluations(database, version.model_id)
    newest = await readmodels.find_evaluation(database, version.model_id)
    verdict = next((each for each in history if each.eval_id == eval_id), None) if eval_id else newest
    if eval_id and verdict is None:
        raise not_found("evaluation", eval_id, param="evaluation")
    return {
        "version": version,
        "verdict": verdict,
        "is_newest": verdict is None or newest is None or verdict.eval_id == newest.eval_id,
        "state": GATES[verdict.outcome] if verdict else GATES["pending"],
        "checks": verdicts.check_views(verdict.checks) if verdict else [],
        "history": [(each, GATES[each.outcome]) for each in history],
        "why_not_approved": why_not_approved(version, newest),
        "why_not_evaluated": "it is archived" if version.stage == "archived" else "",
        "now": database.now(),
    }


def why_not_approved(version: model.ModelVersion, newest: model.Evaluation | None) -> str:
    """Why it cannot be approved for production now; empty where it can."""
    match version.stage:
        case "production":
            return f"it is approved: {version.approval_reason or 'no reason was given'}"
        case "staging" if version.is_stale:
            return "its base model has other files now: train it again"
        case "staging":
            return (
                "" if newest is None or newest.outcome == "passed" else "its newest evaluation has not passed"
            )
        case "archived":
            return "it is archived"
        case _:
            return "its gate has not passed"


def _item(item: EvaluationItem) -> dict[str, Any]:
    base, candidate = verdicts.differing(item.base_answer, item.answer)
    return {"item": item, "base": base, "candidate": candidate}


@router.get("/models/{model_id}/gate/stream")
async def stream(
    request: Request, visitor: Present, context: Context, model_id: str, evaluation: EvaluationId = ""
) -> StreamingResponse:
    version = await model_version(visitor.principal, context, model_id)

    async def look(last: str) -> streams.Changes:
        present = await job_readmodels.find_version_of_gate(context.service.database, version.model_id)
        if present == last:
            return streams.Changes(last)
        present_version = await model_version(visitor.principal, context, version.model_id)
        shown = await _verdict(context, present_version, evaluation)
        html = render.text("gate_verdict.html.jinja", visitor=visitor, **shown)
        return streams.Changes(present, (streams.part("verdict", html),))

    return streams.follow(request, context, visitor, look)


@router.post("/models/{model_id}/evaluate")
async def evaluate(request: Request, sender: Sender, context: Context, model_id: str) -> Response:
    await evaluations.evaluate(sender.principal, context, model_id)
    return _answer(request, model_id, "Evaluation asked: the gate runs once more, with the suites of now.")


@router.post("/models/{model_id}/approve")
async def approve(
    request: Request,
    sender: Sender,
    context: Context,
    model_id: str,
    reason: Annotated[str, Form(max_length=1000)] = "",
    accept_without_holdout: Annotated[bool, Form()] = False,
) -> Response:
    body = Promote(reason=reason, accept_without_holdout=accept_without_holdout)
    await models.promote(sender.principal, context, model_id, body)
    return _answer(request, model_id, "Approved for production.")


def _answer(request: Request, model_id: str, message: str) -> Response:
    if "hx-request" not in request.headers:
        return RedirectResponse(f"/models/{model_id}/gate", 303, render.HEADERS)
    html = render.text("answer.html.jinja", message=message)
    return Response(html, media_type="text/html", headers=render.HEADERS)
