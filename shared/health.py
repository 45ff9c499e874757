"""The routes `/livez`, `/healthz` (by progress) and `/metrics`, for any service without routes of its own."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import make_asgi_app

MAX_OUTBOX_AGE_SECONDS = 60.0
MAX_AWAY_SECONDS = 5.0
RETRY_AFTER = {"retry-after": "5"}
"""Header that every answer with status 503 carries."""

ROUTES = "/livez, /healthz and /metrics"

Asgi = Callable[..., Any]


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


def asgi_app(probe: Probe, *, lifespan: Callable[[], AbstractAsyncContextManager[None]]) -> Asgi:
    metrics = make_asgi_app()

    async def app(scope: dict[str, Any], receive: Asgi, send: Asgi) -> None:
        if scope["type"] == "lifespan":
            await _live(lifespan, receive, send)
        elif scope["path"] == "/livez":
            await _answer(send, 200, {"alive": True})
        elif scope["path"] == "/healthz":
            await _answer(send, *probe.answer())
        elif scope["path"].rstrip("/") == "/metrics":
            await metrics(scope, receive, send)
        else:
            await _answer(send, 404, {"error": f"no route {scope['path']}; there are {ROUTES}"})

    return app


async def _live(lifespan: Callable[[], AbstractAsyncContextManager[None]], receive: Asgi, send: Asgi) -> None:
    await receive()
    async with lifespan():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def _answer(send: Asgi, status: int, body: dict[str, Any]) -> None:
    fields = {"content-type": "application/json"} | (RETRY_AFTER if status == 503 else {})
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
