"""Try it: one question to a model version and to its base model, side by side, by the way that programs ask."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Form
from fastapi.responses import JSONResponse, Response

from services.gateway import job_readmodels, readmodels
from services.gateway.deps import Context, Gateway
from services.gateway.errors import ApiError, over_quota
from services.gateway.inference import ChatRequest
from services.gateway.model import JsonObject, ModelVersion, Route
from services.gateway.page import problems, render, snippets
from services.gateway.page.sessions import Sender
from services.gateway.page.views import model_view
from services.gateway.quotas import QuotaExceeded
from services.gateway.routes import chat
from services.gateway.routes.models import model_version

router = APIRouter()

Which = Literal["base", "version"]
MAX_CHARACTERS = 32_000
TEMPERATURE, MAX_TOKENS = 0.0, 256
"""What a form has that nobody changed: the likeliest words, and not too many of them."""
DEPLOY = "retune deployments deploy {}"
LIST = "retune deployments list"
AWAY = "neither answers now, see below"


@dataclass(frozen=True)
class Problem:
    """Why a side does not answer, and what a person does about it."""

    why: str
    what_to_do: str
    command: str = ""
    is_final: bool = False
    """Whether to ask would get another model's answer."""


@dataclass(frozen=True)
class Side:
    which: Which
    title: str
    name: str
    """What programs ask for."""
    problem: Problem | None = None
    note: str = ""
    """What a person should know before asking."""

    @property
    def curl(self) -> str:
        """The same question for programs."""
        return snippets.as_curl(_body(self.name, "…", "", TEMPERATURE, MAX_TOKENS), "chat/completions")


def sides(
    version: ModelVersion, routes: Sequence[Route], *, namesake: Route | None, replicas: dict[Which, int]
) -> tuple[Side, Side]:
    """`namesake`: the tenant's slot that has the base model's name; `replicas`: how many of each side are ready."""
    route = best_route(routes)
    base = _base_problem(version, namesake, num_replicas=replicas["base"], is_deployed=route is not None)
    return (
        Side("base", "Base model", version.base_model, base),
        Side("version", "This version", version.full_name, _not_deployed(version, routes))
        if route is None
        else _deployed_side(route, num_replicas=replicas["version"]),
    )


def _deployed_side(route: Route, *, num_replicas: int) -> Side:
    side = Side("version", "This version", route.slot)
    if not route.replicas:
        state = "It is being loaded" if route.state == "pending" else "It is not loaded now"
        return replace(side, note=f"{state}: the first answer waits until it is.")
    if not num_replicas:
        why = "it is deployed, and no replica that has it is ready"
        problem = Problem(why, "Ask again in a few seconds. What became of its deployment:", LIST)
        return replace(side, problem=problem)
    return side


def _base_problem(
    version: ModelVersion, namesake: Route | None, *, num_replicas: int, is_deployed: bool
) -> Problem | None:
    if namesake is not None and answers(namesake):
        why = (
            f"a deployment of yours has the name of the base model and answers in its place: {namesake.slot}"
        )
        what_to_do = "Remove it, or deploy it under another name, to compare with the base model:"
        return Problem(why, what_to_do, f"retune deployments remove {namesake.slot}", is_final=True)
    if version.is_stale:
        why = f"{version.base_model} has other files now than those that the version was trained on"
        return Problem(why, "Train the version again to compare both.", is_final=True)
    if not num_replicas:
        why = f"no replica of {version.base_model} is ready"
        if is_deployed:
            return Problem(why, "One is started for the deployment of this version:", LIST)
        return Problem(why, "One is started for a deployed version on it:", DEPLOY.format(version.full_name))
    return None


def _not_deployed(version: ModelVersion, routes: Sequence[Route]) -> Problem:
    if why_not := model_view(version).why_not_deployed:
        return Problem(
            f"it is not deployed, and cannot be: {why_not}",
            "What its gate measured:",
            f"retune models evaluation {version.model_id}",
        )
    failed = next((f": {route.slot} {route.state}, {route.reason}" for route in routes if route.reason), "")
    return Problem(f"it is not deployed{failed}", "Press Deploy above, or:", DEPLOY.format(version.full_name))


def answers(route: Route) -> bool:
    """Whether a chat with its name leads to it, now or when it is loaded."""
    return bool(route.replicas) or route.state in ("ready", "pending")


def best_route(routes: Sequence[Route]) -> Route | None:
    """Return the slot to ask the version by; None where it has none that answers."""
    live = [route for route in routes if answers(route)]
    return min(live, key=lambda route: (not route.replicas, route.state != "ready"), default=None)


def are_away(sides: Sequence[Side]) -> bool:
    """Whether to ask would answer nothing."""
    return all(side.problem for side in sides)


def parts_of(sides: Sequence[Side]) -> dict[str, str]:
    """Return what follows from where both sides stand: HTML by the id of the element that it is in."""
    parts = {"ask-away": AWAY if are_away(sides) else ""}
    for side in sides:
        parts[f"state-{side.which}"] = render.text("model_ask_state.html.jinja", side=side)
        parts[f"curl-{side.which}"] = render.text("model_ask_curl.html.jinja", side=side)
    return parts


def problem_of(error: ApiError, side: Side) -> Problem:
    """What a person reads where a question was refused or got no answer."""
    message = str(error)
    match error.body["error"]["code"]:
        case "model_not_deployed":
            return side.problem or Problem(message, "Deploy it:", DEPLOY.format(side.name))
        case "model_not_loaded":
            return Problem(message, "It is being loaded now: ask again in a few seconds.")
        case "model_unavailable":
            if side.problem:
                return side.problem
            return Problem(message, "Ask again. If it stays so, look at what became of its deployment:", LIST)
        case "no_chat_template":
            completion: JsonObject = {"model": side.name, "prompt": "…", "max_tokens": MAX_TOKENS}
            return Problem(
                message,
                "A model for texts is asked to continue one:",
                snippets.as_curl(completion, "completions"),
            )
    return Problem(message, problems.WHAT_TO_DO.get(error.status, "Change it and ask again."))


def _body(name: str, question: str, system: str, temperature: float, max_tokens: int) -> JsonObject:
    before: list[JsonObject] = [{"role": "system", "content": system}] if system.strip() else []
    return {
        "model": name,
        "messages": [*before, {"role": "user", "content": question}],
        "temperature": temperature,
        "max_tokens": max_tokens,
    }


async def sides_of(context: Gateway, version: ModelVersion, routes: Sequence[Route]) -> tuple[Side, Side]:
    """Both sides as they are now; nothing is loaded for it."""
    tenant, database = version.tenant, context.service.database
    route = best_route(routes)
    counts: dict[Which, int] = {
        "base": len(await readmodels.ready_replicas_of_base(database, version.base_model)),
        "version": len(await chat.serving(context, tenant, route.slot)) if route else 0,
    }
    namesake = await readmodels.find_route(database, tenant, version.base_model)
    return sides(version, routes, namesake=namesake, replicas=counts)


@router.post("/models/{model_id}/ask", response_model=None)
async def ask(
    sender: Sender,
    context: Context,
    model_id: str,
    which: Annotated[Which, Form()] = "version",
    question: Annotated[str, Form(max_length=MAX_CHARACTERS)] = "",
    system: Annotated[str, Form(max_length=MAX_CHARACTERS)] = "",
    temperature: Annotated[float, Form()] = TEMPERATURE,
    max_tokens: Annotated[int, Form()] = MAX_TOKENS,
) -> Response:
    """Stream what a chat of programs streams; JSON with what to do where there is no answer."""
    caller, database = sender.principal, context.service.database
    version = await model_version(caller, context, model_id)
    if not question.strip():
        raise ApiError(400, "question: found nothing, expected text", param="question", code="invalid_value")
    routes = await job_readmodels.list_routes_of_model(database, caller.tenant, version.model_id)
    base, tuned = await sides_of(context, version, routes)
    side = base if which == "base" else tuned
    streamed: JsonObject = {"stream": True, "stream_options": {"include_usage": True}}
    body = _body(side.name, question, system, temperature, max_tokens) | streamed
    try:
        _require_comparable(side)
        answer = await chat.answer(caller, context, chat.checked(json.dumps(body).encode(), ChatRequest))
    except QuotaExceeded as error:
        return _refused(over_quota(error), side)
    except ApiError as error:
        return _refused(error, side)
    answer.headers.update({**render.HEADERS, "x-accel-buffering": "no"})
    return answer


def _require_comparable(side: Side) -> None:
    if side.problem and side.problem.is_final:
        raise ApiError(400, side.problem.why, code="model_unavailable")


def _refused(error: ApiError, side: Side) -> Response:
    problem = problem_of(error, side)
    content = {
        "error": error.body["error"] | {"message": problem.why},
        "what_to_do": problem.what_to_do,
        "command": problem.command,
    }
    return JSONResponse(content, error.status, {**render.HEADERS, **error.headers})
