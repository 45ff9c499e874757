"""Bodies of requests about webhook endpoints: OpenAI's, and ours under `retune`."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from schemas.base import Spec
from services.gateway.webhooks.destinations import MAX_URL_CHARACTERS
from services.gateway.webhooks.events import EVENT_TYPES, PING


def _known(event_type: str) -> str:
    if event_type not in EVENT_TYPES:
        raise ValueError(f"expected one of {', '.join(EVENT_TYPES)}")
    return event_type


def _known_or_ping(event_type: str) -> str:
    return event_type if event_type == PING else _known(event_type)


EventType = Annotated[str, Field(max_length=100), AfterValidator(_known)]
EventTypes = Annotated[tuple[EventType, ...], Field(min_length=1, max_length=100)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Url = Annotated[str, Field(min_length=1, max_length=MAX_URL_CHARACTERS)]


class CreateEndpoint(Spec):
    name: Name
    url: Url
    event_types: EventTypes


class EndpointExtensions(Spec):
    status: Literal["enabled", "disabled"]
    """`enabled` sends what waits again, `disabled` keeps it."""


class UpdateEndpoint(Spec):
    """What is left out stays as it is."""

    name: Name | None = None
    url: Url | None = None
    event_types: EventTypes | None = None
    retune: EndpointExtensions | None = None


class RotateSecret(Spec):
    keep_old_secret_active_for_24_hours: bool = False
    """Whether deliveries are signed with the secret before, too, for another 24 hours."""


class SendTest(Spec):
    event_type: Annotated[str, Field(max_length=100), AfterValidator(_known_or_ping)] = PING
    """Type of the sample event that is sent."""
