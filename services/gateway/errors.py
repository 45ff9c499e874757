"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from shared.errors import StorageUnavailable
from shared.log import get_logger

log = get_logger(__name__)

_FIELD = re.compile(r"^(?!(body|query|int|float|str)$)[a-z0-9_]+$")


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
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def not_found(what: str, name: str, *, param: str | None = None) -> ApiError:
    """Also for what belongs to another tenant: existence is not told."""
    return ApiError(
        404, f"{what} {name!r} does not exist", param=param, code=f"{what.replace(' ', '_')}_not_found"
    )


def first_problem(errors: Sequence[Any]) -> ApiError:
    """The first of pydantic's errors, naming the parameter, what was found and what was expected."""
    first = errors[0]
    # A location also names the branch of a union, for example `constrained-int`; that is no parameter.
    path = [str(part) for part in first["loc"] if _FIELD.match(str(part))]
    param = ".".join(path) or None
    found = "" if isinstance(first.get("input"), dict) else f", found {str(first.get('input'))[:80]!r}"
    code = "unknown_parameter" if first["type"] == "extra_forbidden" else "invalid_value"
    return ApiError(400, f"{param or 'body'}: {first['msg']}{found}", param=param, code=code)


def install(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body, status_code=error.status)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problem = first_problem(error.errors())
        return JSONResponse(problem.body, status_code=problem.status)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(
            ApiError(error.status_code, str(error.detail)).body, status_code=error.status_code
        )

    @app.exception_handler(StorageUnavailable)
    async def storage(request: Request, error: StorageUnavailable) -> JSONResponse:
        problem = ApiError(503, "the object store did not answer; try again", kind="server_error")
        log.warning("storage unavailable", error=str(error))
        return JSONResponse(problem.body, status_code=503, headers={"retry-after": "5"})

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        log.error("request failed", path=request.url.path, exc_info=error)
        problem = ApiError(500, "internal error; it was logged", kind="server_error", code="internal_error")
        return JSONResponse(problem.body, status_code=500)
