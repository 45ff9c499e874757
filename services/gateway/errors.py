"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from math import ceil
from typing import Any

import asyncpg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from services.gateway.quotas import QuotaExceeded
from shared.errors import Refused, StorageUnavailable, TooLarge
from shared.log import get_logger
from shared.postgres.database import is_unavailable
from shared.text import storable

log = get_logger(__name__)

RETRY_SECONDS = 5
REQUEST_ID = "x-request-id"
"""Header in which OpenAI's clients look for a request's id. An unexpected error is answered outside of what surrounds
requests, so that errors have it of their own."""
WORTH_WAITING = timedelta(minutes=1)
AWAY = (ConnectionError, TimeoutError, socket.gaierror, asyncpg.InterfaceError, asyncpg.PostgresError)
"""What a database that cannot be reached raises; `is_unavailable` has the last word."""

Answer = Callable[[Request, Any], "ApiError"]

NOT_SERVED = re.compile(
    r"^/v1/(agents|assistants|audio|batches|chat/completions|chatkit|containers|content_provenance_checks"
    r"|conversations|decisions|embeddings|evals|fine_tuning/(alpha|checkpoints)|images|live|moderations|organization"
    r"|projects|realtime|responses|safety|skills|threads|vaults|vector_stores|videos)(/|$)"
)
"""What OpenAI's API has and this one has not."""

_FIELD = re.compile(r"^(?!(body|query|header|int|float|str)$)[a-zA-Z0-9_]+$")
_CODES = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter"}
_HTTP_CODES = {400: "invalid_body", 404: "unknown_url", 405: "method_not_allowed", 413: "request_too_large"}


class ApiError(Exception):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        message = storable(message)  # it repeats parts of the request
        super().__init__(message)
        self.status = status
        self.headers = {"retry-after": str(RETRY_SECONDS)} if status == 503 else {}
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def answer(self) -> JSONResponse:
        return JSONResponse(self.body, status_code=self.status, headers=self.headers)


def not_found(what: str, name: str, *, param: str | None = None) -> ApiError:
    """Answer 404, also for what belongs to another tenant: existence is not disclosed."""
    code = re.sub(r"\W", "_", what)
    return ApiError(404, f"{what} {name!r} does not exist", param=param, code=f"{code}_not_found")


def unavailable(message: str, *, param: str | None = None, code: str) -> ApiError:
    """Clients try again after `retry-after`."""
    return ApiError(503, message, param=param, code=code, kind="server_error")


def over_quota(error: QuotaExceeded) -> ApiError:
    """Clients of OpenAI try again automatically, which is of use only where room is free soon."""
    kind = "rate_limit_error" if error.again_in <= WORTH_WAITING else "insufficient_quota"
    answer = ApiError(429, error.message, param=error.param, code=error.code, kind=kind)
    answer.headers["retry-after"] = str(ceil(error.again_in.total_seconds()))
    if error.again_in > WORTH_WAITING:
        answer.headers["x-should-retry"] = "false"
    return answer


def not_available_yet(param: str) -> ApiError:
    return ApiError(400, f"{param} is not available yet", param=param, code="not_available_yet")


def first_problem(errors: Sequence[Any]) -> ApiError:
    """The first of pydantic's errors, naming the parameter, what was found and what was expected."""
    first = errors[0]
    kind, message = first["type"], first["msg"].removeprefix("Value error, ")
    if kind == "json_invalid":
        return ApiError(400, f"body: not JSON: {message}", code="invalid_json")
    field = first.get("ctx", {}).get("field")
    location = (*first["loc"], field) if field else first["loc"]
    param = ".".join(str(part) for part in location if is_field(part)) or None
    has_value = kind != "missing" and not isinstance(first.get("input"), dict)
    value_text = f", found {str(first.get('input'))[:80]!r}" if has_value else ""
    code = _CODES.get(kind, "not_available_yet" if kind == "not_available_yet" else "invalid_value")
    return ApiError(400, f"{param or 'body'}: {message}{value_text}", param=param, code=code)


def is_field(part: int | str) -> bool:
    """Whether a part of a location is of a parameter. It may name the branch of a union: `constrained-int`."""
    return _FIELD.fullmatch(str(part)) is not None


def request_id_of(request: Request) -> str:
    """Return the id by which the request is in this process's log: the same one each time."""
    if not hasattr(request.state, "request_id"):
        request.state.request_id = f"req-{secrets.token_hex(8)}"
    return str(request.state.request_id)


def as_json(request: Request, error: ApiError) -> Response:
    """Answer a program. What is refused is logged by the id that the answer has, without what anybody may send at
    will: a key that is none, or more than is taken."""
    if error.status not in (401, 429) and error.status < 500:
        log.info(
            "request refused",
            request_id=request_id_of(request),
            path=request.url.path,
            status=error.status,
            code=error.body["error"]["code"],
        )
    answer = error.answer()
    answer.headers[REQUEST_ID] = request_id_of(request)
    return answer


def install(app: FastAPI, show: Callable[[Request, ApiError], Response] = as_json) -> None:
    """`show`: how an error is answered."""
    for error_type, answer in ANSWERS.items():
        app.add_exception_handler(error_type, _answering(answer, show))


def _answering(
    answer: Answer, show: Callable[[Request, ApiError], Response]
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(request: Request, error: Exception) -> Response:
        return show(request, answer(request, error))

    return handle


def _http_error(request: Request, error: HTTPException) -> ApiError:
    path = request.url.path
    if error.status_code in (404, 405) and NOT_SERVED.match(path):
        return ApiError(404, f"{request.method} {path} is not available", code="not_available_yet")
    code = _HTTP_CODES.get(error.status_code)
    return ApiError(error.status_code, f"{request.url.path}: {error.detail}", code=code)


def _storage_unavailable(request: Request, error: StorageUnavailable) -> ApiError:
    log.warning("storage unavailable", request_id=request_id_of(request), error=str(error))
    return unavailable("the object store did not answer; try again", code="storage_unavailable")


def _no_text(request: Request, error: Exception) -> ApiError:
    message = (
        "a text of the request has a character that cannot be stored, such as NUL or half a surrogate pair"
    )
    return ApiError(400, message, code="invalid_value")


def _database_error(request: Request, error: Exception) -> ApiError:
    if is_no_text(error):
        return _no_text(request, error)
    if not is_unavailable(error):
        return _bug(request, error)
    what = f"{type(error).__name__}: {error}"
    log.warning("database unavailable", request_id=request_id_of(request), error=what)
    return unavailable("the database did not answer; try again", code="database_unavailable")


def is_no_text(error: BaseException) -> bool:
    """Whether asyncpg could not send a text of the request; it raises its own error from the encoder's."""
    return isinstance(error.__cause__ or error.__context__, UnicodeEncodeError)


def _bug(request: Request, error: Exception) -> ApiError:
    request_id = request_id_of(request)
    log.error("request failed", path=request.url.path, request_id=request_id, exc_info=error)
    return ApiError(500, "internal error; it was logged", kind="server_error", code="internal_error")


ANSWERS: dict[type[Exception], Answer] = {
    ApiError: lambda request, error: error,
    RequestValidationError: lambda request, error: first_problem(error.errors()),
    HTTPException: _http_error,
    ClientDisconnect: lambda request, error: ApiError(
        400, "the client went away while it sent the body", code="invalid_body"
    ),
    Refused: lambda request, error: ApiError(400, error.message, param=error.param, code=error.code),
    TooLarge: lambda request, error: ApiError(413, f"body: {error}", code="request_too_large"),
    QuotaExceeded: lambda request, error: over_quota(error),
    StorageUnavailable: _storage_unavailable,
    PydanticSerializationError: _no_text,
    UnicodeEncodeError: _no_text,
    asyncpg.CharacterNotInRepertoireError: _no_text,
    asyncpg.UntranslatableCharacterError: _no_text,
    **dict.fromkeys(AWAY, _database_error),
    Exception: _bug,
}
"""What each error answers; of an error's classes the nearest counts."""
