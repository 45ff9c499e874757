"""Rows of the tables of webhooks, and what an attempt to deliver ended with. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from schemas.base import Count
from services.gateway.model import Row

DeliveryState = Literal["pending", "delivered", "failed"]


class Endpoint(Row):
    endpoint_id: str
    tenant: str
    name: str
    url: str
    event_types: tuple[str, ...]
    nonce: str
    """What its signing secret is derived from."""
    previous_nonce: str | None
    previous_until: datetime | None
    """Until when deliveries are signed with the secret before the rotation, too."""
    is_enabled: bool
    disabled_reason: str
    disabled_at: datetime | None
    failing_since: datetime | None
    """When the first attempt failed of those since the last one that did not."""
    created_at: datetime
    updated_at: datetime


class Delivery(Row):
    delivery_id: str
    endpoint_id: str
    event_id: str
    """Id of the event, the same in every attempt and replay: receivers know a repetition by it."""
    event_type: str
    subject: str
    """The job, or what else the event is about; deliveries of one subject are sent in their order."""
    body: str
    replay_of: str | None
    state: DeliveryState
    attempts: Count
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    status_code: int | None
    error: str
    created_at: datetime


@dataclass(frozen=True)
class Claim:
    """The right to send what is first in a queue, until the lease expires."""

    endpoint_id: str
    subject: str
    lease_token: int
    is_failing: bool
    """Whether the endpoint failed the last time."""


@dataclass(frozen=True)
class Event:
    """What is sent to every endpoint of the tenant that asked for the type."""

    id: str
    type: str
    subject: str
    body: str


@dataclass(frozen=True)
class Result:
    """What an attempt ended with: the status of the answer, or why there was none."""

    status_code: int | None = None
    error: str = ""

    @property
    def reason(self) -> str:
        return self.error or f"status {self.status_code}"

    @property
    def is_success(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300
