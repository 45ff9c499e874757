"""Events: what happened to all that is the tenant's, newest first, live, and each with its record."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from services.gateway import recent_events
from services.gateway.deps import Context, Gateway
from services.gateway.errors import not_found
from services.gateway.page import event_rates, render, streams
from services.gateway.page.event_rates import MINUTES, Rate
from services.gateway.page.sessions import Present
from services.gateway.recent_events import EventFilter

router = APIRouter()

ROWS = 50
DRAW_EVERY = timedelta(seconds=20)
MOST_AT_ONCE = 200
"""New events that a stream sends at once; of more it says how many there are at least."""
PAGES = {"ftjob-": "jobs", "ds-": "datasets", "mv-": "models", "sweep-": "sweeps"}
"""Where the subject of an event has its own page, by how its id begins."""


@dataclass(frozen=True)
class Asked:
    """What the address of the list says."""

    type: str
    subject: str
    q: str
    before: int | None

    @property
    def filter(self) -> EventFilter:
        return EventFilter(self.type, self.subject, self.q)

    @property
    def is_chosen(self) -> bool:
        return bool(self.type or self.subject or self.q)

    def address(self, path: str = "/events", **changes: str | int | None) -> str:
        values = {"type": self.type, "subject": self.subject, "q": self.q, "before": self.before} | changes
        chosen = {name: value for name, value in values.items() if value not in ("", None)}
        return f"{path}?{urlencode(chosen)}" if chosen else path


def asked(
    type: Annotated[str, Query(max_length=100)] = "",  # noqa: A002, it is the word in the address
    subject: Annotated[str, Query(max_length=300)] = "",
    q: Annotated[str, Query(max_length=300)] = "",
    before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
) -> Asked:
    return Asked(type, subject.strip(), q.strip(), before)


Listed = Annotated[Asked, Depends(asked)]


@router.get("/events")
async def events(request: Request, visitor: Present, context: Context, listed: Listed) -> HTMLResponse:
    tenant, database = visitor.principal.tenant, context.service.database
    newest = await recent_events.find_newest(database, tenant)
    page = await recent_events.list_events(database, tenant, listed.filter, before=listed.before, limit=ROWS)
    stream = None if listed.before else listed.address("/events/stream", last=newest)
    return render.page(
        request,
        "events.html.jinja",
        visitor,
        stream=stream,
        events=page.rows,
        rate=None if listed.before else await _rate(context, tenant, listed),
        listed=listed,
        types=await recent_events.list_types(database, tenant),
        older=page.older,
        next=listed.address(before=page.older) if page.older else None,
        is_short=page.older is not None and len(page.rows) < ROWS,
        looked_at=recent_events.LOOKED_AT,
        link_of=link_of,
        kept=context.settings.event_retention,
        most=recent_events.MOST_OF_A_TENANT,
        now=database.now(),
    )


async def _rate(context: Gateway, tenant: str, listed: Asked) -> Rate | None:
    """Return events a minute; None where only those with a text are listed, which are not counted."""
    if listed.q:
        return None
    database = context.service.database
    now = database.now()
    since = now - timedelta(minutes=MINUTES)
    counts = await recent_events.count_by_minute(database, tenant, listed.filter, since=since)
    is_whole = sum(counts.values()) < recent_events.COUNTED
    return event_rates.drawn(counts, now=now, is_whole=is_whole)


def link_of(subject: str) -> str | None:
    """Return the page of what an event is about; None where it has none."""
    return next((f"/{page}/{subject}" for prefix, page in PAGES.items() if subject.startswith(prefix)), None)


@router.get("/events/stream")
async def stream(request: Request, visitor: Present, context: Context, listed: Listed) -> StreamingResponse:
    """Events that fit, each once for this stream; a page that comes back knows its rows by their ids."""
    tenant, database = visitor.principal.tenant, context.service.database
    sent: set[int] = set()
    drawn_at = database.now()

    async def rate_part() -> list[streams.Event]:
        """The bars once more, where they are older than a few seconds."""
        nonlocal drawn_at
        if database.now() - drawn_at < DRAW_EVERY:
            return []
        drawn_at = database.now()
        rate = await _rate(context, tenant, listed)
        return [streams.part("rate", render.text("event_rate.html.jinja", rate=rate))]

    async def look(last: str) -> streams.Changes:
        after = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else 0
        rows = await recent_events.list_newer(
            database, tenant, listed.filter, after=after, limit=MOST_AT_ONCE + 1
        )
        fresh = [row for row in rows if row.number not in sent]
        newest = max([after, *(row.number for row in fresh)])
        if len(fresh) > MOST_AT_ONCE:
            return streams.Changes(str(newest), (("newer", len(fresh)),))
        sent.update(row.number for row in fresh)
        bars = await rate_part()
        if not fresh:
            return streams.Changes(str(newest), tuple(bars))
        html = render.text("event_rows.html.jinja", events=fresh, listed=listed, link_of=link_of)
        return streams.Changes(str(newest), (("events", {"html": html, "count": len(fresh)}), *bars))

    return streams.follow(request, context, visitor, look)


@router.get("/events/{number}")
async def event(request: Request, visitor: Present, context: Context, number: int) -> HTMLResponse:
    """An event with its record as Kafka has it."""
    tenant, database = visitor.principal.tenant, context.service.database
    row = await recent_events.find_event(database, number, tenant) if 0 < number < 2**63 else None
    if row is None:
        raise not_found("event", str(number))
    return render.page(
        request,
        "event.html.jinja",
        visitor,
        event=row,
        payload=pretty(row.payload),
        link=link_of(row.subject),
        now=database.now(),
    )


def pretty(payload: str) -> str:
    """Return JSON with a line for each field; other text as it is."""
    try:
        parsed: Any = json.loads(payload)
    except (ValueError, RecursionError):
        return payload
    return json.dumps(parsed, indent=2, ensure_ascii=False)
