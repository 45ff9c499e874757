"""What surrounds every request: an id, a span, a measurement, a bound on the size of its body."""

import re
import time

from prometheus_client import Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.errors import REQUEST_ID, ApiError, request_id_of
from services.gateway.uploads import MAX_PART_BYTES
from shared.telemetry.tracing import span

FILES = ("/v1/files", "/jobs/new/files")
PARTS = re.compile(r"/v1/uploads/[^/]+/parts")
ANSWER_SECONDS = Histogram(
    "http_answer_seconds",
    "From a request to the beginning of its answer, seconds",
    ["method", "route", "status"],
    buckets=(0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
"""`route` is empty where no route took the request, `method` where it is none of METHODS."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
HSTS = "max-age=31536000"
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_FORM_BYTES = 64 * 1024
"""What a form has around its file."""


class Measured:
    """Counts answers by route, and the time until each began; a stream's end is not waited for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "")
                method = scope["method"] if scope["method"] in METHODS else ""
                labels = method, route, str(message["status"])
                ANSWER_SECONDS.labels(*labels).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, send_measured)


class Identified:
    """Gives each request of a program the id that its answer's header names, as OpenAI's does, and the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(Request(scope))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class Traced:
    """One span per request, so that all that it sends is of one trace; the caller's, where it names one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sends = scope.get("method") == "POST"
        if scope["type"] != "http" or not (sends or scope["path"].startswith("/v1/")):
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else ""
        with span(method or "request", traceparent=Headers(scope=scope).get("traceparent", "")) as current:
            await self._app(scope, receive, send)
            if route := getattr(scope.get("route"), "path", ""):
                current.update_name(f"{method} {route}")


class HttpsOnly:
    """An answer over TLS tells browsers to ask this host over TLS alone from now on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["strict-transport-security"] = HSTS
            await send(message)

        is_over_tls = scope["type"] == "http" and scope["scheme"] == "https"
        await self._app(scope, receive, send_with_header if is_over_tls else send)


class BoundedBody:
    """A body that is too long is refused by its Content-Length, or else where it passes the limit."""

    def __init__(self, app: ASGIApp, *, upload_bytes: int) -> None:
        self._app = app
        self._upload_bytes = upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > limit:
            await _too_large(int(announced), limit).answer()(scope, receive, send)
            return
        await self._app(scope, _counted(receive, limit), send)

    def _limit(self, path: str) -> int:
        if path in FILES:
            return self._upload_bytes + MAX_FORM_BYTES
        return MAX_PART_BYTES + MAX_FORM_BYTES if PARTS.fullmatch(path) else MAX_BODY_BYTES


def _counted(receive: Receive, limit: int) -> Receive:
    received = 0

    async def next_part() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            # FastAPI makes 400 of anything else that is raised while it reads a body.
            raise HTTPException(413, f"found over {limit} bytes, expected at most {limit}")
        return message

    return next_part


def _too_large(size: int, limit: int) -> ApiError:
    message = f"body: found {size} bytes, expected at most {limit}"
    return ApiError(413, message, code="request_too_large")
