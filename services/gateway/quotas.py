"""What a tenant may have at once and ask for in a time: by default, or as the operator decided for it."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from shared.errors import Refused

GIB = 1024**3

Limit = Annotated[int, Field(ge=0, lt=2**53)] | None
"""Limit of a quota; None: as much as there is."""


class Quotas(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    requests_per_minute: Limit = 6_000
    """Requests of each API key, over HTTP, in each process of the gateway."""
    commands_per_day: Limit = 10_000
    """Commands over HTTP and Kafka together, in a day of UTC."""
    open_jobs: Limit = 1_000
    """Jobs that have not ended."""
    running_devices: Limit = None
    """Devices of attempts at once, over all pools. The scheduler applies it: jobs beyond it are taken and wait."""
    cost_per_month: Limit = None
    """US dollars that are charged for attempts that end within a calendar month of UTC. Before they are more, running
    jobs end as at their own budget; new ones are refused until the next month, and queued ones wait."""
    open_datasets: Limit = 1_000
    """Datasets that are not validated yet, those of jobs among them."""
    stored_bytes: Limit = 200 * GIB
    """Bytes of all files and exports of models, each counted for itself."""
    webhook_endpoints: Limit = 20
    """Endpoints that webhooks are sent to, those that are switched off among them."""
    streams: Limit = 50
    """Timelines that are followed at once, in each process of the gateway."""
    inference_requests: Limit = 100
    """Chats and completions that are answered at once, streamed or not, in each process of the gateway."""
    transfers: Limit = 8
    """Files that are sent or fetched at once, in each process of the gateway."""
    transfer_bytes: Limit = 16 * GIB
    """Bytes of the files of `transfers`; an upload that does not announce its length counts as the longest that is
    taken."""

    @classmethod
    def none(cls) -> Self:
        return cls(**dict.fromkeys(cls.model_fields))

    def changed_by(self, changes: Mapping[str, object]) -> Self:
        """`changes`: what the operator decided for a tenant; a name that an older release had is left out."""
        known = changes.keys() & type(self).model_fields.keys()
        return self.model_copy(update={name: changes[name] for name in known})


def month_start(now: datetime) -> datetime:
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_month(now: datetime) -> datetime:
    return month_start(month_start(now) + timedelta(days=31))


def month_reached_at(
    limit: int | None, charged: Decimal, reached_at: datetime | None, *, now: datetime
) -> datetime | None:
    """Return when `cost_per_month` was used up, or would have been by what ran; None where there is something left.

    reached_at: when the tracker was heard to end what ran.
    """
    if limit is None:
        return None
    if reached_at is not None and reached_at >= month_start(now):
        return reached_at
    return now if charged >= limit else None


class QuotaExceeded(Refused):
    """A quota of the tenant is used up: 429 over HTTP."""

    def __init__(self, name: str, message: str, *, limit: int, again_in: timedelta) -> None:
        super().__init__("quota_exceeded", f"{name}: {message}, expected at most {limit}", param=name)
        self.again_in = again_in
        """When it is worth to ask again."""
