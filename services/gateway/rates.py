"""What one process bounds in its memory: requests of a key in a time, and what of a tenant is under way."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from starlette.responses import ContentStream, StreamingResponse
from starlette.types import Receive, Scope, Send

from services.gateway.errors import unavailable
from services.gateway.quotas import QuotaExceeded

BURST_SECONDS = 10.0
"""A key that was still for so long may send this much of its rate at once."""
MAX_KEYS = 100_000
"""Keys whose last requests are remembered."""


@dataclass
class _Bucket:
    tokens: float
    filled_at: float


@dataclass
class Rates:
    """A token bucket for each key."""

    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)

    def take(self, key_id: str, per_minute: int | None, *, now: float) -> None:
        """`now`: in seconds, by a clock that never goes back. Raises QuotaExceeded."""
        if per_minute is None:
            return
        size, per_second = max(1.0, per_minute * BURST_SECONDS / 60), per_minute / 60
        bucket = self._buckets.setdefault(key_id, _Bucket(size, now))
        self._buckets.move_to_end(key_id)
        if len(self._buckets) > MAX_KEYS:
            self._buckets.popitem(last=False)
        bucket.tokens = min(size, bucket.tokens + (now - bucket.filled_at) * per_second)
        bucket.filled_at = now
        if bucket.tokens < 1:
            again_in = (
                timedelta(seconds=(1 - bucket.tokens) / per_second) if per_second else timedelta(days=1)
            )
            message = "this API key sent more requests"
            raise QuotaExceeded("requests_per_minute", message, limit=per_minute, again_in=again_in)
        bucket.tokens -= 1


@dataclass
class InFlight:
    """How much of one kind each tenant has under way; `name` is the quota's."""

    name: str
    of_all: int
    """How much this process carries of all tenants together."""
    _counts: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def hold(self, tenant: str, limit: int | None, *, amount: int = 1) -> Iterator[None]:
        """Raises QuotaExceeded, or ApiError where all tenants together have too much."""
        present = self._counts[tenant]
        if limit is not None and present + amount > limit:
            message = f"found {present} under way and {amount} more"
            raise QuotaExceeded(self.name, message, limit=limit, again_in=timedelta(seconds=5))
        if self._counts.total() + amount > self.of_all:
            message = (
                f"{self.name}: as much as this gateway carries is under way, {self.of_all} of all tenants"
            )
            raise unavailable(message, code="busy")
        self._counts[tenant] += amount
        try:
            yield
        finally:
            self._counts[tenant] -= amount
            if not self._counts[tenant]:
                del self._counts[tenant]


class HeldResponse(StreamingResponse):
    """Holds what it was given until its last byte is sent, or the client has gone."""

    def __init__(
        self,
        content: ContentStream,
        held: ExitStack,
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)
