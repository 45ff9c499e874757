"""/v1/events: what happened to all that is the tenant's, with its records, as the page Events has it."""

from typing import Annotated

from fastapi import APIRouter, Query

from services.gateway import event_responses, recent_events
from services.gateway.deps import MAX_DIGITS, Caller, Context, invalid_cursor, page_size, parse_cursor
from services.gateway.errors import not_found
from services.gateway.event_responses import Event, EventWithRecord
from services.gateway.recent_events import EventFilter
from services.gateway.responses import Page

router = APIRouter()


@router.get("/events")
async def events(
    caller: Caller,
    context: Context,
    after: str | None = None,
    limit: int = 20,
    type: Annotated[str, Query(max_length=100)] = "",  # noqa: A002, it is the word in the address
    subject: Annotated[str, Query(max_length=300)] = "",
    q: Annotated[str, Query(max_length=300)] = "",
) -> Page[Event]:
    """List events that are kept, the newest first: of a type, of what has the id `subject`, with the text `q`.

    A text is looked for in some thousands of events at once: with `q` a page that is not full may have a next one.
    """
    before = parse_cursor(after, "event", param="after")
    database = context.service.database
    if before is not None and await recent_events.find_event(database, before, caller.tenant) is None:
        raise invalid_cursor(after or "")
    event_filter = EventFilter(type, subject, q)
    listed = await recent_events.list_events(
        database, caller.tenant, event_filter, before=before, limit=page_size(limit)
    )
    return event_responses.event_page(listed)


@router.get("/events/{event_id}")
async def retrieve(caller: Caller, context: Context, event_id: str) -> EventWithRecord:
    """Return an event with its record as Kafka has it."""
    number = event_id.removeprefix("event-")
    is_number = number != event_id and number.isascii() and number.isdigit() and len(number) < MAX_DIGITS
    database = context.service.database
    row = await recent_events.find_event(database, int(number), caller.tenant) if is_number else None
    if row is None:
        raise not_found("event", event_id)
    return event_responses.event_with_record(row)
