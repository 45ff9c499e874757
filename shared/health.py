"""`/healthz` by progress and `/metrics`, for any service without routes of its own."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import make_asgi_app

MAX_OUTBOX_AGE_SECONDS = 60.0

Asgi = Callable[..., Any]


@dataclass
class Probe:
    """What decides whether a process is healthy; the service keeps it up to date."""

    ready: bool = False
    outbox_age_seconds: float = 0.0
    stalled_topics: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        found = [] if self.ready else ["not ready yet"]
        if self.outbox_age_seconds > MAX_OUTBOX_AGE_SECONDS:
            found.append(f"oldest event not in Kafka is {self.outbox_age_seconds:.0f} s old")
        return found + [f"no progress on {topic} for a minute" for topic in self.stalled_topics]


def asgi_app(probe: Probe, *, lifespan: Callable[[], AbstractAsyncContextManager[None]]) -> Asgi:
    metrics = make_asgi_app()

    async def app(scope: dict[str, Any], receive: Asgi, send: Asgi) -> None:
        if scope["type"] == "lifespan":
            await _live(lifespan, receive, send)
        elif scope["path"] == "/healthz":
            problems = probe.problems()
            await _answer(send, 503 if problems else 200, {"healthy": not problems, "problems": problems})
        elif scope["path"].rstrip("/") == "/metrics":
            await metrics(scope, receive, send)
        else:
            await _answer(send, 404, {"error": f"no route {scope['path']}; there are /healthz and /metrics"})

    return app


async def _live(lifespan: Callable[[], AbstractAsyncContextManager[None]], receive: Asgi, send: Asgi) -> None:
    await receive()
    async with lifespan():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def _answer(send: Asgi, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
