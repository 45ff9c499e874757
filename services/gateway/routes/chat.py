"""/v1/chat/completions and /v1/completions: proxied to a replica that has the model, streaming too."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from schemas.model import NO_TEMPLATE_SHA256
from services.gateway import readmodels
from services.gateway.deps import Caller, Context, Gateway
from services.gateway.errors import ApiError, first_problem, unavailable
from services.gateway.inference import ChatRequest, CompletionRequest, Inference
from services.gateway.rates import HeldResponse
from shared.log import get_logger
from shared.replica_http import route_of

log = get_logger(__name__)
router = APIRouter()

Kind = TypeVar("Kind", bound=Inference)

POLL_SECONDS = 0.1
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, OSError)
"""The request never left, or there is no key to send it with."""
NOT_HERE = frozenset({httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND})
"""The replica has lost the model, or our key is of its last incarnation."""


class TryNextReplica(Exception):
    """This replica did nothing with the request; another one may."""


@dataclass(frozen=True)
class Target:
    replica_id: str
    url: str
    served_name: str


def documented(path: str, kind: type[Inference]) -> dict[str, Any]:
    """What the reference says of a route whose body is parsed here and whose answer is the replica's."""
    schema_path = f"#/paths/~1v1{path.replace('/', '~1')}/post/requestBody/content/application~1json/schema"
    schema = kind.model_json_schema(ref_template=schema_path + "/$defs/{model}")
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {
                "description": "OpenAI's object, or the stream of its chunks, as the replica answers",
                "content": {
                    "application/json": {"schema": {"type": "object"}},
                    "text/event-stream": {"schema": {"type": "string"}},
                },
            }
        },
    }


@router.post(
    "/chat/completions", response_model=None, openapi_extra=documented("/chat/completions", ChatRequest)
)
async def chat(caller: Caller, context: Context, request: Request) -> Response:
    return await answer(caller, context, checked(await request.body(), ChatRequest))


async def answer(caller: Caller, context: Gateway, asked: ChatRequest) -> Response:
    """Answer as a replica does, whole or as a stream. Raises ApiError and QuotaExceeded."""
    await _require_template(context, caller.tenant, asked.model)
    return await _proxy(caller, context, asked, "/v1/chat/completions")


@router.post("/completions", response_model=None, openapi_extra=documented("/completions", CompletionRequest))
async def completions(caller: Caller, context: Context, request: Request) -> Response:
    asked = checked(await request.body(), CompletionRequest)
    return await _proxy(caller, context, asked, "/v1/completions")


def checked(raw: bytes, kind: type[Kind]) -> Kind:
    """Raises ApiError naming the parameter at fault."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise first_problem(error.errors(include_url=False)) from error


async def _require_template(context: Gateway, tenant: str, name: str) -> None:
    """Raises ApiError where the model is known to have no chat template."""
    template = await readmodels.find_template(context.service.database, tenant, name)
    if template == NO_TEMPLATE_SHA256:
        message = f"model {name!r} has no chat template; ask it by /v1/completions"
        raise ApiError(400, message, param="model", code="no_chat_template")


async def _proxy(caller: Caller, context: Gateway, asked: Inference, path: str) -> Response:
    """Raises QuotaExceeded. A stream counts until its last byte is sent, or its client has gone."""
    in_flight, limit = context.inference_requests, caller.quotas.inference_requests
    with ExitStack() as held:
        held.enter_context(in_flight.hold(caller.tenant, limit))
        answer = await _answer(caller, context, asked, path)
        if isinstance(answer, Response):
            return answer
        return HeldResponse(answer, held.pop_all(), media_type="text/event-stream")


async def _answer(
    caller: Caller, context: Gateway, asked: Inference, path: str
) -> Response | AsyncIterator[bytes]:
    """Whole, or the lines of a stream."""
    targets = await _targets(context, caller.tenant, asked.model)
    random.shuffle(targets)
    for target in targets:
        try:
            return await _forward(context, target, path, asked)
        except TryNextReplica as error:
            log.warning("replica does not answer", replica_id=target.replica_id, error=str(error))
    raise _unavailable(asked.model)


def _unavailable(name: str) -> ApiError:
    message = f"no replica of model {name!r} answers now; try again"
    return unavailable(message, param="model", code="model_unavailable")


async def _targets(context: Gateway, tenant: str, name: str) -> list[Target]:
    """Replicas that serve the name.

    The word that a model is approved may be here before its route is; what nobody asked for lately is loaded first.
    """
    targets = await serving(context, tenant, name) or await _awaited(context, tenant, name)
    context.uses.note(tenant, name)
    return targets


async def _awaited(context: Gateway, tenant: str, name: str) -> list[Target]:
    until, database = time.monotonic() + context.settings.route_wait_seconds, context.service.database
    is_logged = False
    while True:
        is_idle = await readmodels.is_route_idle(database, tenant, name)
        is_expected = is_idle or await readmodels.is_route_expected(database, tenant, name)
        if targets := await serving(context, tenant, name):
            return targets
        if not is_expected:
            raise await _why_not(context, tenant, name)
        if time.monotonic() > until:
            raise _not_loaded(name) if is_idle else _unavailable(name)
        if is_idle:
            context.uses.wait_for(tenant, name)
        if not is_logged:
            log.info("route awaited", slot=name, tenant=tenant, is_idle=is_idle)
            is_logged = True
        await asyncio.sleep(POLL_SECONDS)


def _not_loaded(name: str) -> ApiError:
    message = (
        f"model {name!r} is not loaded: more models are deployed than SERVING_CONTROLLER_MAX_RESIDENT_ADAPTERS, "
        "and others were used since; it is being loaded, try again"
    )
    return unavailable(message, param="model", code="model_not_loaded")


async def serving(context: Gateway, tenant: str, name: str) -> list[Target]:
    """Return replicas that serve a slot of the tenant, else a base model. Lost incarnations do not count."""
    database = context.service.database
    route = await readmodels.find_route(database, tenant, name)
    if route is not None and (route.replicas or route.state == "ready"):
        ready = await readmodels.ready_incarnations(database)
        return [
            Target(replica.replica_id, replica.url, route.served_name)
            for replica in route.replicas
            if (replica.replica_id, replica.incarnation) in ready
        ]
    replicas = await readmodels.ready_replicas_of_base(database, name)
    return [Target(replica.replica_id, replica.url, replica.served_base) for replica in replicas]


async def _why_not(context: Gateway, tenant: str, name: str) -> ApiError:
    database = context.service.database
    route = await readmodels.find_route(database, tenant, name)
    if route is not None and route.state == "ready":
        return _unavailable(name)
    model = await readmodels.find_model(database, tenant, name)
    if model is not None:
        verdict = await readmodels.find_evaluation(database, model.model_id)
        reason = f"; gate: {verdict.outcome} {verdict.reason}".rstrip() if verdict else ""
        message = f"model {name!r} is in stage {model.stage!r} and not deployed{reason}"
        return ApiError(404, message, param="model", code="model_not_deployed")
    if await readmodels.find_base(database, name) is not None:
        return _unavailable(name)
    return ApiError(404, f"model {name!r} does not exist", param="model", code="model_not_found")


async def _forward(
    context: Gateway, target: Target, path: str, asked: Inference
) -> Response | AsyncIterator[bytes]:
    """Raises TryNextReplica while the replica has done nothing.

    A request that it had is not given to the next one: what ended one engine could end them all.
    """
    answer = await _send(context, target, path, asked)
    if asked.stream and answer.status_code == httpx.codes.OK:
        return _renamed_lines(answer, target, asked.model)
    try:
        raw = await answer.aread()
    except httpx.TransportError as error:
        raise _lost(target, asked, error) from error
    finally:
        await answer.aclose()
    if answer.status_code in NOT_HERE:
        raise TryNextReplica(f"{answer.status_code}: {raw[:200]!r}")
    if answer.is_server_error:
        raise _lost(target, asked, f"{answer.status_code}: {raw[:200]!r}")
    media_type = answer.headers.get("content-type", "application/json")
    return Response(
        _renamed(raw, target.served_name, asked.model), status_code=answer.status_code, media_type=media_type
    )


async def _send(context: Gateway, target: Target, path: str, asked: Inference) -> httpx.Response:
    body = asked.body(target.served_name)
    try:
        key = (context.settings.replica_keys_dir / target.replica_id).read_text().strip()
        headers = {"authorization": f"Bearer {key}"}
        url = route_of(target.url, path)
        request = context.http.build_request("POST", url, json=body, headers=headers)
        return await context.http.send(request, stream=True)
    except UNSENT as error:
        raise TryNextReplica(f"{type(error).__name__}: {error}") from error
    except httpx.TransportError as error:
        raise _lost(target, asked, error) from error


def _lost(target: Target, asked: Inference, error: object) -> ApiError:
    log.warning("replica failed in a request", replica_id=target.replica_id, error=repr(error))
    message = f"the replica of model {asked.model!r} failed while it answered; try again"
    return unavailable(message, param="model", code="model_unavailable")


async def _renamed_lines(answer: httpx.Response, target: Target, asked: str) -> AsyncIterator[bytes]:
    try:
        async for line in answer.aiter_lines():
            yield _renamed(line.encode(), target.served_name, asked) + b"\n"
    except httpx.TransportError as error:
        log.warning("replica failed in a stream", replica_id=target.replica_id, error=repr(error))
        problem = unavailable(
            f"the replica of model {asked!r} failed in its answer", code="model_unavailable"
        )
        yield f"data: {json.dumps(problem.body)}\n\n".encode()
    finally:
        await answer.aclose()


def _renamed(raw: bytes, served: str, asked: str) -> bytes:
    """Callers see the name they asked for, not the immutable one of the replica."""
    return raw.replace(json.dumps(served).encode(), json.dumps(asked).encode(), 1)
