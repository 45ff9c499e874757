"""The routes `/livez`, `/healthz` (by progress) and `/metrics`, for any service without a web framework, and those
that it answers by POST beside them."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from shared.settings import Address
from shared.telemetry.metrics_route import metrics_app

MAX_OUTBOX_AGE_SECONDS = 60.0
MAX_AWAY_SECONDS = 5.0
RETRY_AFTER = {"retry-after": "5"}
"""Header that every answer with status 503 carries."""

ROUTES = ("/livez", "/healthz", "/metrics")

Asgi = Callable[..., Any]
Answer = Callable[[Mapping[str, str], bytes], Awaitable[tuple[int, bytes]]]
"""Headers, with names in lower case, and body of a request become status and JSON of its answer."""


@dataclass(frozen=True)
class Route:
    answer: Answer
    max_bytes: int
    """Size above which a body is refused."""


@dataclass
class Probe:
    """The state that decides whether a process is healthy; the service keeps it up to date."""

    ready: bool = False
    postgres_away_seconds: Callable[[], float] = lambda: 0.0
    outbox_age_seconds: float = 0.0
    stalled_topics: list[str] = field(default_factory=list)
    missing_topics: list[str] = field(default_factory=list)
    parked_blocking: int = 0
    """Parked messages that hold others back; a restart would not help, so they are no problem of the process."""

    def problems(self) -> list[str]:
        problems = [] if self.ready else ["not ready yet"]
        if (away_seconds := self.postgres_away_seconds()) > MAX_AWAY_SECONDS:
            problems.append(f"Postgres has been unavailable for {away_seconds:.0f} s")
        if self.outbox_age_seconds > MAX_OUTBOX_AGE_SECONDS:
            problems.append(f"oldest event not in Kafka is {self.outbox_age_seconds:.0f} s old")
        problems += [f"topic {topic} is missing" for topic in self.missing_topics]
        return problems + [f"no progress on {topic} for a minute" for topic in self.stalled_topics]

    def answer(self) -> tuple[int, dict[str, Any]]:
        problems = self.problems()
        body = {"healthy": not problems, "problems": problems, "parked_blocking": self.parked_blocking}
        return 503 if problems else 200, body


def asgi_app(
    probe: Probe,
    *,
    lifespan: Callable[[], AbstractAsyncContextManager[None]],
    routes: Mapping[str, Route] | None = None,
    nodes: Address | None = None,
) -> Asgi:
    """nodes: a listener at which `routes` are answered and nothing else."""
    metrics, routes = metrics_app(), routes or {}

    async def app(scope: dict[str, Any], receive: Asgi, send: Asgi) -> None:
        if scope["type"] == "lifespan":
            await _live(lifespan, receive, send)
        elif scope["path"] in routes:
            await _post(routes[scope["path"]], scope, receive, send)
        elif nodes and _came_by(scope, nodes.port):
            await _refuse_path(scope, [*routes], send)
        elif scope["path"] == "/livez":
            await _answer(send, 200, {"alive": True})
        elif scope["path"] == "/healthz":
            await _answer(send, *probe.answer())
        elif scope["path"].rstrip("/") == "/metrics":
            await metrics(scope, receive, send)
        else:
            await _refuse_path(scope, [*ROUTES, *routes], send)

    return app


def _came_by(scope: dict[str, Any], port: int) -> bool:
    """Return whether the request came by the listener at this port, whatever address it names."""
    return bool(scope["server"][1] == port)


async def _refuse_path(scope: dict[str, Any], known: Sequence[str], send: Asgi) -> None:
    there = " and ".join(filter(None, (", ".join(known[:-1]), *known[-1:]))) or "none"
    await _answer(send, 404, {"error": f"no route {scope['path']}; there are {there}"})


async def _post(route: Route, scope: dict[str, Any], receive: Asgi, send: Asgi) -> None:
    if scope["method"] != "POST":
        await _answer(send, 405, {"error": f"method {scope['method']}, expected POST"})
        return
    body, is_whole = b"", False
    while not is_whole and len(body) <= route.max_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        is_whole = not message.get("more_body", False)
    if len(body) > route.max_bytes:
        await _answer(send, 413, {"error": f"more than {route.max_bytes} bytes"})
        return
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    status, content = await route.answer(headers, body)
    await _send(send, status, content)


async def _live(lifespan: Callable[[], AbstractAsyncContextManager[None]], receive: Asgi, send: Asgi) -> None:
    await receive()
    async with lifespan():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def _answer(send: Asgi, status: int, body: dict[str, Any]) -> None:
    await _send(send, status, json.dumps(body).encode())


async def _send(send: Asgi, status: int, content: bytes) -> None:
    fields = {"content-type": "application/json"} | (RETRY_AFTER if status == 503 else {})
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
