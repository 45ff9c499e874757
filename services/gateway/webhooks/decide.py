"""What follows from an attempt to deliver: the next one, an end, an endpoint that is switched off. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from services.gateway.webhooks.model import Delivery, DeliveryState, Endpoint, Result

MAX_DOUBLINGS = 20
"""More would only come to numbers that nothing can hold."""
GONE = 410
"""Status by which a receiver ends its subscription, as Standard Webhooks recommends."""


@dataclass(frozen=True)
class BackOff:
    shortest: timedelta
    longest: timedelta = timedelta(hours=1)
    limit: timedelta = timedelta(days=3)
    """How long a delivery is tried, and how long an endpoint may fail before it is switched off."""

    def pause(self, attempts: int, jitter: float) -> timedelta:
        """Return the pause after so many attempts: twice the one before, less up to half of it (`jitter` 0 to 1)."""
        doubled: timedelta = self.shortest * 2 ** min(attempts - 1, MAX_DOUBLINGS)
        return min(doubled, self.longest) * (1 - jitter / 2)


@dataclass(frozen=True)
class Outcome:
    state: DeliveryState
    failing_since: datetime | None
    due_at: datetime | None = None
    """When a pending delivery is tried again."""
    disabled_reason: str = ""
    """Why the endpoint is switched off now; empty where it is not."""

    @property
    def label(self) -> str:
        """What the metric counts it as."""
        return "retried" if self.state == "pending" else self.state


def after_attempt(
    delivery: Delivery, endpoint: Endpoint, result: Result, *, now: datetime, jitter: float, back_off: BackOff
) -> Outcome:
    """`delivery` and `endpoint` are as they were before the attempt."""
    if result.is_success:
        return Outcome("delivered", failing_since=None)
    failing_since = endpoint.failing_since or now
    if result.status_code == GONE:
        return Outcome("failed", failing_since, disabled_reason="the endpoint answered 410 Gone")
    if now - (delivery.first_attempt_at or now) < back_off.limit:
        due_at = now + back_off.pause(delivery.attempts + 1, jitter)
        return Outcome("pending", failing_since, due_at=due_at)
    reason = ""
    if now - failing_since >= back_off.limit:
        reason = f"nothing was delivered since {failing_since:%Y-%m-%d %H:%M} UTC: {result.reason}"
    return Outcome("failed", failing_since, disabled_reason=reason)
