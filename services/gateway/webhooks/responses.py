"""Answers about webhook endpoints: OpenAI's objects, and ours under `retune`; and how rows become them."""

from datetime import datetime
from typing import Literal

from schemas.base import Count
from services.gateway.representations import unix
from services.gateway.responses import Answer, Resource, Time
from services.gateway.webhooks import model, signing
from services.gateway.webhooks.model import DeliveryState


class EndpointExtensions(Answer):
    status: Literal["enabled", "disabled"]
    reason: str
    """Why nothing is sent to it."""
    disabled_at: Time | None
    failing_since: Time | None
    """When the first attempt failed of those since the last one that did not."""
    old_secret_until: Time | None
    """Until when deliveries are signed with the secret before the rotation, too."""


class WebhookEndpoint(Resource):
    object: Literal["webhook_endpoint"]
    name: str
    url: str
    event_types: tuple[str, ...]
    created_at: Time
    updated_at: Time
    signing_secret_hint: str
    retune: EndpointExtensions


class WebhookEndpointWithSecret(WebhookEndpoint):
    signing_secret: str
    """Shown only here."""


class DeletedWebhookEndpoint(Resource):
    object: Literal["webhook_endpoint.deleted"]
    deleted: bool


class WebhookTest(Answer):
    object: Literal["webhook_endpoint.test"]
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    """Status that the endpoint answered."""
    success: Literal[True]
    """Whether there was an answer, as OpenAI has it; whether it was a good one, `status_code` says."""


class WebhookEventTypes(Answer):
    object: Literal["list"]
    data: tuple[str, ...]


class WebhookDelivery(Resource):
    """An event and an endpoint: what the attempts to deliver it came to."""

    object: Literal["webhook_delivery"]
    webhook_endpoint_id: str
    event_id: str
    """The header webhook-id, the same in every attempt and replay."""
    event_type: str
    subject: str
    """Job, or what else the event is about, whose deliveries are sent in their order."""
    status: DeliveryState
    attempts: Count
    status_code: int | None
    """Status of the last answer."""
    error: str
    """Why the last attempt had no answer."""
    created_at: Time
    last_attempt_at: Time | None
    next_attempt_at: Time | None
    """When it is sent; none where it has ended, or waits for another delivery of its subject or for its endpoint."""
    replay_of: str | None
    """The delivery of the same event that was asked for again."""


def _when(time: datetime | None) -> Time | None:
    return None if time is None else unix(time)


def endpoint(row: model.Endpoint, root: str, *, now: datetime) -> WebhookEndpoint:
    """`root`: what the endpoint's secret is derived from."""
    has_old = row.previous_until is not None and now < row.previous_until
    return WebhookEndpoint(
        id=row.endpoint_id,
        object="webhook_endpoint",
        name=row.name,
        url=row.url,
        event_types=row.event_types,
        created_at=unix(row.created_at),
        updated_at=unix(row.updated_at),
        signing_secret_hint=signing.hint(signing.signing_secret(root, row.endpoint_id, row.nonce)),
        retune=EndpointExtensions(
            status="enabled" if row.is_enabled else "disabled",
            reason=row.disabled_reason,
            disabled_at=_when(row.disabled_at),
            failing_since=_when(row.failing_since),
            old_secret_until=_when(row.previous_until) if has_old else None,
        ),
    )


def endpoint_with_secret(row: model.Endpoint, root: str, *, now: datetime) -> WebhookEndpointWithSecret:
    secret = signing.signing_secret(root, row.endpoint_id, row.nonce)
    shown = endpoint(row, root, now=now)
    return WebhookEndpointWithSecret(**dict(shown), signing_secret=secret)


def delivery(row: model.Delivery, next_attempt_at: datetime | None) -> WebhookDelivery:
    return WebhookDelivery(
        id=row.delivery_id,
        object="webhook_delivery",
        webhook_endpoint_id=row.endpoint_id,
        event_id=row.event_id,
        event_type=row.event_type,
        subject=row.subject,
        status=row.state,
        attempts=row.attempts,
        status_code=row.status_code,
        error=row.error,
        created_at=unix(row.created_at),
        last_attempt_at=_when(row.last_attempt_at),
        next_attempt_at=_when(next_attempt_at),
        replay_of=row.replay_of,
    )
