"""One stream of server-sent events for each open page: what changed since the id that the browser had last."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import JsonValue

from services.gateway.alerts import count_open_alerts
from services.gateway.deps import Gateway
from services.gateway.page import render, sessions
from services.gateway.page.sessions import Visitor
from services.gateway.rates import HeldResponse

POLL_SECONDS = 0.5
PAUSE_RATIO = 4
"""A pause after a look to the time that the look took, so that a page costs a fifth of a core at most; no pause is
longer than PING_SECONDS."""
PING_SECONDS = 4.0
MAX_ID_CHARACTERS = 100


Event = tuple[str, JsonValue]
"""Name and data."""


@dataclass(frozen=True)
class Changes:
    id: str
    """What the browser names when it comes back: it holds all that is known of what the page shows."""
    events: tuple[Event, ...] = ()


Look = Callable[[str], Awaitable[Changes]]
"""Takes the id of the last changes, empty at first."""


def part(element_id: str, html: str) -> Event:
    """The new content of an element of the page."""
    return "part", {"id": element_id, "html": html}


Show = Callable[[], Awaitable[dict[str, Any]]]
"""Returns what a template takes, and the `version` of what is shown."""


def version_of(*shown: object) -> str:
    """Return another text where anything that is shown is other than before."""
    return hashlib.sha256(repr(shown).encode()).hexdigest()[:16]


def follow_part(
    request: Request, context: Gateway, visitor: Visitor, show: Show, *, element_id: str, template: str
) -> StreamingResponse:
    """Follow what one element of the page shows."""

    async def look(last: str) -> Changes:
        shown = await show()
        if shown["version"] == last:
            return Changes(last)
        html = render.text(template, visitor=visitor, **shown)
        return Changes(shown["version"], (part(element_id, html),))

    return follow(request, context, visitor, look)


def follow(request: Request, context: Gateway, visitor: Visitor, look: Look) -> StreamingResponse:
    caller = visitor.principal
    last = request.headers.get("last-event-id") or request.query_params.get("last", "")
    with ExitStack() as held:
        held.enter_context(context.streams.hold(caller.tenant, caller.quotas.streams))
        events = _events(request, context, visitor, look, last[:MAX_ID_CHARACTERS])
        return HeldResponse(
            events,
            held.pop_all(),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )


async def _events(
    request: Request, context: Gateway, visitor: Visitor, look: Look, last: str
) -> AsyncIterator[str]:
    """Ends with this process, and with the session; `ready` says that nothing older is to come."""
    pinged_at, num_alerts = float("-inf"), -1
    while not context.is_stopping:
        began_at = time.monotonic()
        changes = await look(last)
        looked_seconds = time.monotonic() - began_at
        for name, data in changes.events:
            yield _event(name, data, changes.id)
        last = changes.id
        if time.monotonic() - pinged_at > PING_SECONDS:
            if not await sessions.is_open(request, context, visitor):
                yield _event("ended", None, last)
                return
            present = await count_open_alerts(context.service.database, visitor.principal.tenant)
            if present != num_alerts:
                num_alerts = present
                yield _event("alerts", num_alerts, last)
            yield _event("ready" if pinged_at < 0 else "ping", None, last)
            pinged_at = time.monotonic()
        await asyncio.sleep(min(max(POLL_SECONDS, PAUSE_RATIO * looked_seconds), PING_SECONDS))


def _event(name: str, data: JsonValue, event_id: str) -> str:
    return f"id: {event_id}\nevent: {name}\ndata: {json.dumps(data)}\n\n"
