"""/v1/chat/completions and /v1/completions: proxied to a replica that has the model, streaming too."""

import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from services.gateway import readmodels
from services.gateway.deps import Caller, Found, Gateway
from services.gateway.errors import ApiError
from shared.log import get_logger

log = get_logger(__name__)
router = APIRouter()

MAX_CHOICES = 8
# Log-probabilities of the prompt end the engine of vLLM on CPU when adapters share its batch.
REFUSED_OPTIONS = ("prompt_logprobs", "echo")
MAX_BODY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Target:
    replica_id: str
    url: str
    served_name: str


@router.post("/chat/completions", response_model=None)
async def chat(caller: Caller, found: Found, request: Request) -> Response:
    return await _proxy(caller, found, request, "/v1/chat/completions")


@router.post("/completions", response_model=None)
async def completions(caller: Caller, found: Found, request: Request) -> Response:
    return await _proxy(caller, found, request, "/v1/completions")


async def _proxy(caller: Caller, found: Gateway, request: Request, path: str) -> Response:
    body = _checked(await request.body())
    asked = body["model"]
    targets = await _targets(found, caller.tenant, asked)
    random.shuffle(targets)
    for target in targets:
        try:
            return await _forward(found, target, path, body | {"model": target.served_name}, asked)
        except httpx.ConnectError as error:
            log.warning("replica does not answer", replica_id=target.replica_id, error=str(error))
    raise ApiError(
        503,
        f"no replica of model {asked!r} answers now; try again",
        code="model_unavailable",
        kind="server_error",
    )


def _checked(raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_BODY_BYTES:
        raise ApiError(413, f"body: found {len(raw)} bytes, expected at most {MAX_BODY_BYTES}")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"body: not JSON: {error}") from error
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise ApiError(400, "model: missing or not text", param="model", code="missing_required_parameter")
    for name in REFUSED_OPTIONS:
        if body.get(name) not in (None, False):
            raise ApiError(400, f"{name} is not available", param=name, code="not_available_yet")
    choices = body.get("n")
    if choices is not None and not (isinstance(choices, int) and 1 <= choices <= MAX_CHOICES):
        raise ApiError(
            400, f"n: found {choices!r}, expected 1 to {MAX_CHOICES}", param="n", code="invalid_value"
        )
    return body


async def _targets(found: Gateway, tenant: str, name: str) -> list[Target]:
    """Replicas that serve the name: a slot of the tenant, else a base model. Lost incarnations do not count."""
    database = found.service.database
    route = await database.fetchrow(readmodels.FIND_ROUTE, tenant, name)
    if route is not None and route["replicas"]:
        ready = {tuple(row) for row in await database.fetch(readmodels.READY_INCARNATIONS)}
        return [
            Target(replica["replica_id"], replica["url"], route["served_name"])
            for replica in route["replicas"]
            if (replica["replica_id"], replica["incarnation"]) in ready
        ]
    replicas = await database.fetch(readmodels.READY_REPLICAS_OF_BASE, name)
    if replicas:
        return [Target(row["replica_id"], row["url"], row["served_base"]) for row in replicas]
    raise await _why_not(found, tenant, name)


async def _why_not(found: Gateway, tenant: str, name: str) -> ApiError:
    model = await readmodels.find_model(found.service.database, tenant, name)
    if model is not None:
        verdict = await readmodels.find_evaluation(found.service.database, model["model_id"])
        reason = f"; gate: {verdict['outcome']} {verdict['reason']}".rstrip() if verdict else ""
        message = f"model {name!r} is in stage {model['stage']!r} and not deployed{reason}"
        return ApiError(404, message, param="model", code="model_not_deployed")
    for row in await found.service.database.fetch(readmodels.LIST_BASES):
        if row["name"] == name:
            message = f"no replica of base model {name!r} is ready yet; try again"
            return ApiError(503, message, param="model", code="model_unavailable", kind="server_error")
    return ApiError(404, f"model {name!r} does not exist", param="model", code="model_not_found")


async def _forward(found: Gateway, target: Target, path: str, body: dict[str, Any], asked: str) -> Response:
    key = (found.settings.replica_keys_dir / target.replica_id).read_text().strip()
    request = found.http.build_request(
        "POST", target.url + path, json=body, headers={"authorization": f"Bearer {key}"}
    )
    answer = await found.http.send(request, stream=True)
    if body.get("stream") and answer.status_code == 200:
        lines = _renamed_lines(answer, target.served_name, asked)
        return StreamingResponse(lines, media_type="text/event-stream")
    try:
        raw = await answer.aread()
    finally:
        await answer.aclose()
    media_type = answer.headers.get("content-type", "application/json")
    return Response(
        _renamed(raw, target.served_name, asked), status_code=answer.status_code, media_type=media_type
    )


async def _renamed_lines(answer: httpx.Response, served: str, asked: str) -> AsyncIterator[bytes]:
    try:
        async for line in answer.aiter_lines():
            yield _renamed(line.encode(), served, asked) + b"\n"
    finally:
        await answer.aclose()


def _renamed(raw: bytes, served: str, asked: str) -> bytes:
    """Callers see the name they asked for, not the immutable one of the replica."""
    return raw.replace(json.dumps(served).encode(), json.dumps(asked).encode(), 1)
