"""Events of a tenant as routes answer them."""

from typing import Any, Literal

from schemas.base import Count
from services.gateway.recent_events import EventPage, RecentEvent, RecordedEvent
from services.gateway.representations import unix
from services.gateway.responses import Page, Resource, Time


class Event(Resource):
    object: Literal["event"]
    created_at: Time
    """When it was sent."""
    type: str
    subject: str
    """The job that it is about, or else the record's key."""
    level: Literal["info", "warn", "error"]
    message: str
    topic: str
    """Where all tenants' events of its kind are; a tenant's own topic has a copy."""


class EventWithRecord(Event):
    key: str
    partition: Count
    offset: Count
    headers: tuple[tuple[str, str], ...]
    payload: str
    """The record's value."""


def event_page(listed: EventPage) -> Page[Event]:
    """Make a page that continues after what was looked at, of which the last may not be listed."""
    shown = tuple(map(event, listed.rows))
    last = shown[-1].id if shown else None
    return Page(
        object="list",
        data=shown,
        has_more=listed.older is not None,
        first_id=shown[0].id if shown else None,
        last_id=last if listed.older is None else f"event-{listed.older}",
    )


def event(row: RecentEvent) -> Event:
    return Event(**_event(row))


def event_with_record(row: RecordedEvent) -> EventWithRecord:
    return EventWithRecord(
        **_event(row),
        key=row.key,
        partition=row.partition,
        offset=row.record_offset,
        headers=row.headers,
        payload=row.payload,
    )


def _event(row: RecentEvent) -> dict[str, Any]:
    same = ("type", "subject", "level", "message", "topic")
    of_row = {name: getattr(row, name) for name in same}
    return of_row | {"id": f"event-{row.number}", "object": "event", "created_at": unix(row.sent_at)}
