"""Webhooks: endpoints of the tenant, what became of their deliveries, and what may be done with both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from pydantic import ValidationError

from services.gateway.deps import Context, Gateway, invalid_cursor
from services.gateway.errors import ApiError, first_problem, over_quota
from services.gateway.page import formats, lists, render, streams
from services.gateway.page.sessions import Present, Sender, Visitor
from services.gateway.page.views import Badge
from services.gateway.quotas import QuotaExceeded
from services.gateway.routes import webhooks as routes
from services.gateway.webhooks import events, signing, store
from services.gateway.webhooks.model import Delivery, DeliveryState, Endpoint
from services.gateway.webhooks.requests import (
    CreateEndpoint,
    EndpointExtensions,
    RotateSecret,
    SendTest,
    UpdateEndpoint,
)
from services.gateway.webhooks.store import EndpointOrder

router = APIRouter()

ROWS = 50
DELIVERIES = 25
ENDS = tuple(each for each in events.EVENT_TYPES if each.startswith(events.OPENAI_PREFIX))
"""Types that a new endpoint has unless others are chosen: the ends of jobs."""
STATES: Mapping[DeliveryState, Badge] = {
    "pending": Badge("waiting", "idle", "ring"),
    "delivered": Badge("delivered", "good", "check"),
    "failed": Badge("failed", "bad", "cross"),
}
AGAIN = Badge("retrying", "warn", "clock")
STATUSES = {"enabled": ("working", "failing"), "failing": ("failing",), "disabled": ("disabled",)}
ORDERS: Mapping[EndpointOrder, str] = {"created": "newest first", "name": "by name"}
Listed = Annotated[lists.Asked[EndpointOrder], Depends(lists.asked_by(STATUSES, ORDERS))]


@dataclass(frozen=True)
class EndpointView:
    row: Endpoint
    badge: Badge
    sentence: str
    """Why nothing is sent, or since when it fails."""
    secret_hint: str
    last: "DeliveryView | None" = None

    @property
    def id(self) -> str:
        return self.row.endpoint_id


@dataclass(frozen=True)
class DeliveryView:
    row: Delivery
    badge: Badge
    answer: str
    """What the last attempt came to."""
    next_try: str
    why_not_replayed: str
    """Why it cannot be sent again now; empty where it can."""


def endpoint_view(row: Endpoint, root: str, *, last: DeliveryView | None = None) -> EndpointView:
    """`root`: what the endpoint's secret is derived from."""
    badge, sentence = Badge("enabled", "good", "check"), ""
    if not row.is_enabled and row.disabled_reason == routes.OWNERS_CHOICE:
        badge, sentence = Badge("disabled", "idle", "slashed-ring"), row.disabled_reason
    elif not row.is_enabled:
        badge, sentence = Badge("switched off", "bad", "cross"), row.disabled_reason
    elif row.failing_since:
        badge = Badge("failing", "warn", "bolt")
        sentence = f"nothing was taken since {formats.moment(row.failing_since)}"
    hint = signing.hint(signing.signing_secret(root, row.endpoint_id, row.nonce))
    return EndpointView(row, badge, sentence, hint, last)


def delivery_view(
    row: Delivery, endpoint: Endpoint, due_at: datetime | None, *, now: datetime
) -> DeliveryView:
    badge = AGAIN if row.state == "pending" and row.attempts else STATES[row.state]
    answer = row.error or (f"status {row.status_code}" if row.status_code else formats.NONE)
    why_not = "it is still to be sent" if row.state == "pending" else ""
    if not why_not and not endpoint.is_enabled:
        why_not = "the endpoint is disabled"
    return DeliveryView(row, badge, answer, _next_try(row, endpoint, due_at, now=now), why_not)


def _next_try(row: Delivery, endpoint: Endpoint, due_at: datetime | None, *, now: datetime) -> str:
    if row.state != "pending":
        return formats.NONE
    if not endpoint.is_enabled:
        return "once it is enabled"
    if due_at is None:
        return "after an earlier one"
    seconds = (due_at - now).total_seconds()
    return f"in {formats.duration(seconds)}" if seconds >= 1 else "any moment"


@router.get("/webhooks")
async def endpoints(request: Request, visitor: Present, context: Context, listed: Listed) -> HTMLResponse:
    """The tenant's endpoints."""
    return await _list(request, visitor, context, listed)


async def _list(
    request: Request,
    visitor: Visitor,
    context: Gateway,
    listed: Listed,
    *,
    typed: Mapping[str, Any] | None = None,
    problem: ApiError | None = None,
) -> HTMLResponse:
    """`typed`: what the form of a new endpoint held, and `problem` why it was refused."""
    return render.page(
        request,
        "webhooks.html.jinja",
        visitor,
        status=problem.status if problem else 200,
        stream=listed.stream,
        types=events.EVENT_TYPES,
        typed=typed or {"name": "", "url": "", "event_types": ENDS},
        problem=problem.body["error"] if problem else None,
        **await _listed(visitor, context, listed),
    )


async def _listed(visitor: Visitor, context: Gateway, listed: Listed) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant, context.service.database
    if listed.after and await store.find_endpoint(database, listed.after, tenant) is None:
        raise invalid_cursor(listed.after)
    rows = await store.list_endpoints(
        database, tenant, after=listed.after, limit=ROWS + 1, only=listed.only, order=listed.sort
    )
    shown, now = rows[:ROWS], database.now()
    newest = await store.last_deliveries(database, [row.endpoint_id for row in shown])
    lasts = {
        row.endpoint_id: delivery_view(newest[row.endpoint_id], row, None, now=now)
        for row in shown
        if row.endpoint_id in newest
    }
    root = routes.root(context)
    attempts = [(each.delivery_id, each.state, each.attempts) for each in newest.values()]
    return {
        "endpoints": [endpoint_view(row, root, last=lasts.get(row.endpoint_id)) for row in shown],
        "listed": listed,
        "next": listed.address(after=shown[-1].endpoint_id) if len(rows) > ROWS else None,
        "version": streams.version_of(rows, sorted(attempts)),
        "now": now,
    }


@router.get("/webhooks/stream")
async def list_stream(
    request: Request, visitor: Present, context: Context, listed: Listed
) -> StreamingResponse:
    async def show() -> dict[str, Any]:
        return await _listed(visitor, context, listed)

    return streams.follow_part(
        request, context, visitor, show, element_id="list", template="webhooks_parts.html.jinja"
    )


@router.post("/webhooks")
async def create(
    request: Request,
    sender: Sender,
    context: Context,
    listed: Listed,
    name: Annotated[str, Form()] = "",
    url: Annotated[str, Form()] = "",
    event_types: Annotated[list[str], Form()] = [],  # noqa: B006, FastAPI copies it
) -> HTMLResponse:
    """The page of the endpoint with its secret, which is shown only here; the form again where it is refused."""
    typed = {"name": name, "url": url.strip(), "event_types": tuple(event_types)}
    try:
        created = await routes.create(sender.principal, context, CreateEndpoint.model_validate(typed))
    except ValidationError as error:
        problem = first_problem(error.errors(include_url=False))
        return await _list(request, sender, context, listed, typed=typed, problem=problem)
    except QuotaExceeded as error:
        return await _list(request, sender, context, listed, typed=typed, problem=over_quota(error))
    except ApiError as error:
        return await _list(request, sender, context, listed, typed=typed, problem=error)
    return await _page(request, sender, context, created.id, secret=created.signing_secret)


@router.get("/webhooks/{endpoint_id}")
async def endpoint(
    request: Request,
    visitor: Present,
    context: Context,
    endpoint_id: str,
    status: Annotated[DeliveryState | None, Query()] = None,
    after: str | None = None,
) -> HTMLResponse:
    """An endpoint and its deliveries, newest first."""
    return await _page(request, visitor, context, endpoint_id, status=status, after=after)


async def _page(
    request: Request,
    visitor: Visitor,
    context: Gateway,
    endpoint_id: str,
    *,
    status: DeliveryState | None = None,
    after: str | None = None,
    secret: str = "",
    typed: Mapping[str, Any] | None = None,
    problem: ApiError | None = None,
) -> HTMLResponse:
    """`typed`: what the form of changes held, and `problem` why it was refused."""
    shown = await _shown(visitor, context, endpoint_id, status=status, after=after)
    row = shown["endpoint"].row
    stream = None if after else f"/webhooks/{endpoint_id}/stream" + (f"?status={status}" if status else "")
    return render.page(
        request,
        "webhook.html.jinja",
        visitor,
        status=problem.status if problem else 200,
        stream=stream,
        secret=secret,
        types=events.EVENT_TYPES,
        samples=(events.PING, *events.EVENT_TYPES),
        typed=typed or {"name": row.name, "url": row.url, "event_types": row.event_types},
        problem=problem.body["error"] if problem else None,
        **shown,
    )


async def _shown(
    visitor: Visitor,
    context: Gateway,
    endpoint_id: str,
    *,
    status: DeliveryState | None,
    after: str | None = None,
) -> dict[str, Any]:
    database = context.service.database
    row = await routes.own_endpoint(visitor.principal, context, endpoint_id)
    if after is not None and await store.find_delivery(database, endpoint_id, after) is None:
        raise invalid_cursor(after)
    rows = await store.list_deliveries(database, endpoint_id, state=status, after=after, limit=DELIVERIES + 1)
    due = await store.next_attempts(database, endpoint_id, rows) if row.is_enabled else {}
    now, shown = database.now(), rows[:DELIVERIES]
    chosen = f"status={status}&" if status else ""
    return {
        "endpoint": endpoint_view(row, routes.root(context)),
        "deliveries": [delivery_view(each, row, due.get(each.delivery_id), now=now) for each in shown],
        "next": f"?{chosen}after={shown[-1].delivery_id}" if len(rows) > DELIVERIES else None,
        "version": version_of(row, shown, due),
        "chosen": status,
        "states": STATES,
        "after": after,
        "now": now,
    }


def version_of(row: Endpoint, deliveries: Sequence[Delivery], due: Mapping[str, datetime]) -> str:
    """Another one where anything that is shown is other than before."""
    attempts = [(each.delivery_id, each.state, each.attempts) for each in deliveries]
    return streams.version_of(row, attempts, sorted(due.items()))


@router.get("/webhooks/{endpoint_id}/stream")
async def stream(
    request: Request,
    visitor: Present,
    context: Context,
    endpoint_id: str,
    status: Annotated[DeliveryState | None, Query()] = None,
) -> StreamingResponse:
    await routes.own_endpoint(visitor.principal, context, endpoint_id)

    async def show() -> dict[str, Any]:
        return await _shown(visitor, context, endpoint_id, status=status)

    return streams.follow_part(
        request, context, visitor, show, element_id="webhook", template="webhook_parts.html.jinja"
    )


@router.post("/webhooks/{endpoint_id}")
async def change(
    request: Request,
    sender: Sender,
    context: Context,
    endpoint_id: str,
    name: Annotated[str, Form()] = "",
    url: Annotated[str, Form()] = "",
    event_types: Annotated[list[str], Form()] = [],  # noqa: B006, FastAPI copies it
) -> Response:
    """Change its name, address and event types; the form again where they are refused."""
    row = await routes.own_endpoint(sender.principal, context, endpoint_id)
    typed = {"name": name, "url": url.strip(), "event_types": tuple(event_types)}
    try:
        await routes.update(context, row, UpdateEndpoint.model_validate(typed))
    except ValidationError as error:
        problem = first_problem(error.errors(include_url=False))
        return await _page(request, sender, context, endpoint_id, typed=typed, problem=problem)
    except ApiError as error:
        if error.status != 400:
            raise
        return await _page(request, sender, context, endpoint_id, typed=typed, problem=error)
    return RedirectResponse(f"/webhooks/{endpoint_id}", 303, render.HEADERS)


@router.post("/webhooks/{endpoint_id}/test")
async def send_test(
    request: Request,
    sender: Sender,
    context: Context,
    endpoint_id: str,
    event_type: Annotated[str, Form()] = events.PING,
) -> Response:
    row = await routes.own_endpoint(sender.principal, context, endpoint_id)
    try:
        body = SendTest(event_type=event_type)
    except ValidationError as error:
        raise first_problem(error.errors(include_url=False)) from error
    sent = await routes.send_test(sender.principal, context, row, body)
    is_good = 200 <= sent.status_code < 300
    message = f"{row.url} answered {sent.status_code} to {sent.event_type}."
    return _answer(
        request, endpoint_id, message if is_good else f"{message} Expected 200 to 299.", is_good=is_good
    )


@router.post("/webhooks/{endpoint_id}/enable")
async def enable(request: Request, sender: Sender, context: Context, endpoint_id: str) -> Response:
    row = await routes.own_endpoint(sender.principal, context, endpoint_id)
    await routes.update(context, row, UpdateEndpoint(retune=EndpointExtensions(status="enabled")))
    return _answer(request, endpoint_id, "Enabled: what waits is sent, and what happens from now on.")


@router.post("/webhooks/{endpoint_id}/disable")
async def disable(request: Request, sender: Sender, context: Context, endpoint_id: str) -> Response:
    row = await routes.own_endpoint(sender.principal, context, endpoint_id)
    await routes.update(context, row, UpdateEndpoint(retune=EndpointExtensions(status="disabled")))
    return _answer(request, endpoint_id, "Disabled: what waits stays, events of later are left out.")


@router.post("/webhooks/{endpoint_id}/rotate")
async def rotate(
    request: Request,
    sender: Sender,
    context: Context,
    endpoint_id: str,
    keeps_old: Annotated[bool, Form()] = False,
) -> Response:
    """The new secret is in this answer alone."""
    row = await routes.own_endpoint(sender.principal, context, endpoint_id)
    body = RotateSecret(keep_old_secret_active_for_24_hours=keeps_old)
    rotated = await routes.rotate_secret(context, row, body)
    if "hx-request" not in request.headers:
        return await _page(request, sender, context, endpoint_id, secret=rotated.signing_secret)
    html = render.text("webhook_secret.html.jinja", secret=rotated.signing_secret)
    return Response(html, media_type="text/html", headers=render.HEADERS)


@router.post("/webhooks/{endpoint_id}/deliveries/{delivery_id}/replay")
async def replay(
    request: Request, sender: Sender, context: Context, endpoint_id: str, delivery_id: str
) -> Response:
    row = await routes.own_endpoint(sender.principal, context, endpoint_id)
    again = await routes.replay(context, row, delivery_id)
    return _answer(request, endpoint_id, f"{again.event_type} is sent again under its id, {again.event_id}.")


@router.post("/webhooks/{endpoint_id}/delete")
async def delete(
    request: Request,
    sender: Sender,
    context: Context,
    endpoint_id: str,
    name: Annotated[str, Form(max_length=300)] = "",
) -> Response:
    """`name`: the endpoint's, as the person typed it."""
    row = await routes.own_endpoint(sender.principal, context, endpoint_id)
    if name.strip() != row.name.strip():
        message = f"name: found {name[:80]!r}, expected {row.name!r}"
        raise ApiError(400, message, param="name", code="invalid_value")
    await routes.delete(sender.principal, context, endpoint_id)
    if "hx-request" in request.headers:
        return Response(headers={"hx-redirect": "/webhooks", **render.HEADERS})
    return RedirectResponse("/webhooks", 303, render.HEADERS)


def _answer(request: Request, endpoint_id: str, message: str, *, is_good: bool = True) -> Response:
    if "hx-request" not in request.headers:
        return RedirectResponse(f"/webhooks/{endpoint_id}", 303, render.HEADERS)
    html = render.text("answer.html.jinja", message=message, is_problem=not is_good)
    return Response(html, media_type="text/html", headers=render.HEADERS)
