"""/v1/webhook_endpoints: where a tenant is sent its events. Any API key of the tenant may manage them."""

import secrets
from datetime import timedelta
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Depends

from services.gateway import representations
from services.gateway.deps import Caller, Context, Gateway, invalid_cursor, page_size
from services.gateway.errors import ApiError, not_found
from services.gateway.quotas import QuotaExceeded
from services.gateway.responses import Page
from services.gateway.webhooks import destinations, events, responses, store
from services.gateway.webhooks.destinations import InvalidUrl
from services.gateway.webhooks.model import DeliveryState, Endpoint
from services.gateway.webhooks.requests import CreateEndpoint, RotateSecret, SendTest, UpdateEndpoint
from shared.messaging.unit import Unit

router = APIRouter()

KEPT_AFTER_ROTATION = timedelta(hours=24)
A_DAY = timedelta(days=1)
TESTS_OF_A_TENANT = 4
"""Tests that are under way at once, in each process of the gateway."""
NONCE_BYTES = 16
OWNERS_CHOICE = "switched off by its owner"
"""Reason of an endpoint that nothing is wrong with."""


async def own_endpoint(caller: Caller, context: Context, endpoint_id: str) -> Endpoint:
    endpoint = await store.find_endpoint(context.service.database, endpoint_id, caller.tenant)
    if endpoint is None:
        raise not_found("webhook_endpoint", endpoint_id)
    return endpoint


OwnEndpoint = Annotated[Endpoint, Depends(own_endpoint)]


@router.get("/webhook_event_types")
async def list_event_types(caller: Caller) -> responses.WebhookEventTypes:
    return responses.WebhookEventTypes(object="list", data=events.EVENT_TYPES)


@router.post("/webhook_endpoints")
async def create(
    caller: Caller, context: Context, body: CreateEndpoint
) -> responses.WebhookEndpointWithSecret:
    """The signing secret is shown only here."""
    _require_url(context, body.url)
    async with context.service.unit() as unit:
        await _require_room(unit, caller)
        endpoint = await store.insert_endpoint(
            unit.conn,
            f"whe_{uuid4().hex}",
            caller.tenant,
            name=body.name,
            url=body.url,
            event_types=body.event_types,
            nonce=_nonce(),
            now=unit.now,
        )
    return responses.endpoint_with_secret(endpoint, root(context), now=endpoint.created_at)


@router.get("/webhook_endpoints")
async def list_endpoints(
    caller: Caller, context: Context, after: str | None = None, limit: int = 20
) -> Page[responses.WebhookEndpoint]:
    """List endpoints, the newest first."""
    size, database = page_size(limit), context.service.database
    if after is not None and await store.find_endpoint(database, after, caller.tenant) is None:
        raise invalid_cursor(after)
    rows = await store.list_endpoints(database, caller.tenant, after=after, limit=size + 1)
    return representations.page([_shown(context, row) for row in rows], size=size)


@router.get("/webhook_endpoints/{endpoint_id}")
async def retrieve(context: Context, endpoint: OwnEndpoint) -> responses.WebhookEndpoint:
    return _shown(context, endpoint)


@router.post("/webhook_endpoints/{endpoint_id}")
async def update(context: Context, endpoint: OwnEndpoint, body: UpdateEndpoint) -> responses.WebhookEndpoint:
    """What waits is sent to the new address; the event types are those of later events."""
    if body.url is not None:
        _require_url(context, body.url)
    async with context.service.unit() as unit:
        row = await _held(unit, endpoint)
        if body.model_fields_set - {"retune"}:
            row = await store.change_endpoint(
                unit.conn,
                row.endpoint_id,
                name=body.name or row.name,
                url=body.url or row.url,
                event_types=body.event_types or row.event_types,
                now=unit.now,
            )
        status = body.retune.status if body.retune else None
        if status == "enabled" and not row.is_enabled:
            row = await store.enable(unit.conn, row.endpoint_id, now=unit.now)
        if status == "disabled" and row.is_enabled:
            row = await store.disable(unit.conn, row.endpoint_id, OWNERS_CHOICE, now=unit.now)
    return _shown(context, row)


@router.post("/webhook_endpoints/{endpoint_id}/rotate_secret")
async def rotate_secret(
    context: Context, endpoint: OwnEndpoint, body: RotateSecret | None = None
) -> responses.WebhookEndpointWithSecret:
    """Another signing secret, shown only here. For 24 hours both may sign: each delivery then has two signatures."""
    keeps_old = body is not None and body.keep_old_secret_active_for_24_hours
    async with context.service.unit() as unit:
        row = await _held(unit, endpoint)
        until = unit.now + KEPT_AFTER_ROTATION if keeps_old else None
        row = await store.rotate(unit.conn, row.endpoint_id, _nonce(), previous_until=until, now=unit.now)
    return responses.endpoint_with_secret(row, root(context), now=row.updated_at)


@router.post("/webhook_endpoints/{endpoint_id}/test")
async def send_test(
    caller: Caller, context: Context, endpoint: OwnEndpoint, body: SendTest | None = None
) -> responses.WebhookTest:
    """Send a sample event at once and once, `ping` unless another type is named; the log of deliveries has it."""
    event_type = (body or SendTest()).event_type
    now = context.service.clock()
    event = events.sample_event(event_type, endpoint_id=endpoint.endpoint_id, event_id=uuid4().hex, time=now)
    with context.webhook_tests.hold(caller.tenant, TESTS_OF_A_TENANT):
        result = await context.webhooks.send(endpoint, event.id, event.body, now=now)
    state: DeliveryState = "delivered" if result.is_success else "failed"
    async with context.service.unit() as unit:
        await store.insert_test(unit.conn, endpoint.endpoint_id, event, state, result, now=unit.now)
    if result.status_code is None:
        raise ApiError(400, f"{endpoint.url}: {result.error}", code="webhook_not_answered")
    return responses.WebhookTest(
        object="webhook_endpoint.test",
        webhook_endpoint_id=endpoint.endpoint_id,
        event_type=event_type,
        status_code=result.status_code,
        success=True,
    )


@router.delete("/webhook_endpoints/{endpoint_id}")
async def delete(caller: Caller, context: Context, endpoint_id: str) -> responses.DeletedWebhookEndpoint:
    """Delete it with the log of its deliveries and what of them waits."""
    async with context.service.unit() as unit:
        if not await store.delete_endpoint(unit.conn, endpoint_id, caller.tenant):
            raise not_found("webhook_endpoint", endpoint_id)
    return responses.DeletedWebhookEndpoint(id=endpoint_id, object="webhook_endpoint.deleted", deleted=True)


@router.get("/webhook_endpoints/{endpoint_id}/deliveries")
async def list_deliveries(
    context: Context,
    endpoint: OwnEndpoint,
    after: str | None = None,
    limit: int = 20,
    status: DeliveryState | None = None,
) -> Page[responses.WebhookDelivery]:
    """List deliveries, the newest first."""
    size, database = page_size(limit), context.service.database
    if after is not None and await store.find_delivery(database, endpoint.endpoint_id, after) is None:
        raise invalid_cursor(after)
    rows = await store.list_deliveries(
        database, endpoint.endpoint_id, state=status, after=after, limit=size + 1
    )
    due = await store.next_attempts(database, endpoint.endpoint_id, rows) if endpoint.is_enabled else {}
    shown = [responses.delivery(row, due.get(row.delivery_id)) for row in rows]
    return representations.page(shown, size=size)


@router.post("/webhook_endpoints/{endpoint_id}/deliveries/{delivery_id}/replay")
async def replay(context: Context, endpoint: OwnEndpoint, delivery_id: str) -> responses.WebhookDelivery:
    """Deliver an event again, under its id, behind what waits of its subject."""
    async with context.service.unit() as unit:
        row = await _held(unit, endpoint)
        delivery = await store.find_delivery(unit.conn, row.endpoint_id, delivery_id)
        if delivery is None:
            raise not_found("webhook_delivery", delivery_id)
        if delivery.state == "pending":
            message = f"webhook_delivery {delivery_id!r} is pending, expected delivered or failed"
            raise ApiError(400, message, code="webhook_delivery_pending")
        if not row.is_enabled:
            message = f"webhook_endpoint {row.endpoint_id!r} is disabled, expected enabled"
            raise ApiError(400, message, code="webhook_endpoint_disabled")
        again = await store.replay(unit.conn, delivery, now=unit.now)
    return responses.delivery(again, None)


async def _held(unit: Unit, endpoint: Endpoint) -> Endpoint:
    """The endpoint as it is now, which nobody changes before the commit."""
    row = await store.hold_endpoint(unit.conn, endpoint.endpoint_id)
    if row is None:
        raise not_found("webhook_endpoint", endpoint.endpoint_id)
    return row


async def _require_room(unit: Unit, caller: Caller) -> None:
    limit = caller.quotas.webhook_endpoints
    if limit is None:
        return
    count = await store.count_endpoints(unit.conn, caller.tenant)
    if count >= limit:
        raise QuotaExceeded("webhook_endpoints", f"found {count}", limit=limit, again_in=A_DAY)


def _require_url(context: Gateway, url: str) -> None:
    """What its host's name leads to is looked up, and checked, each time that something is sent."""
    settings = context.settings
    try:
        destination = destinations.parse_url(url, allow_http=settings.webhook_allow_http)
    except InvalidUrl as error:
        raise ApiError(400, f"url: {error}", param="url", code="invalid_value") from None
    address = destinations.literal_address(destination.host)
    if address and not destinations.is_allowed(address, settings.webhook_allowed_networks):
        message = f"url: found {destination.host}, expected an address of the public internet"
        raise ApiError(400, message, param="url", code="invalid_value")


def _shown(context: Gateway, endpoint: Endpoint) -> responses.WebhookEndpoint:
    return responses.endpoint(endpoint, root(context), now=context.service.database.now())


def root(context: Gateway) -> str:
    return context.settings.webhook_secret.get_secret_value()


def _nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)
