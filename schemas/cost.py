"""cost.commands and cost.events: money spent by jobs, and what limits it."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Attempt, CapacityType, FailureClass, JobId, Message, Seconds, TenantName, Usd


class LimitSpending(Message):
    """Bound what a tenant is charged for attempts that end within a calendar month of UTC."""

    keyed_by = "tenant"
    tenant: TenantName
    cost_per_month: Annotated[int, Field(ge=0, lt=2**53)] | None
    """US dollars; None: no limit."""


class CostAccrued(Message):
    """An attempt's nodes were released and how it ended is known; what it cost, and whether the tenant pays."""

    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    attempt: Attempt
    node_seconds: Seconds
    cost: Usd
    total: Usd
    """Cost of the job so far, paid by the tenant or not."""
    capacity_type: CapacityType
    until: datetime
    """When the last node was released."""
    failure_class: FailureClass | None = None
    """Why the attempt ended; None where it completed or was paused."""
    charged: Usd | None = None
    """What the tenant pays of `cost`: nothing where it ended for no fault of theirs; None in older events: all."""
    charged_total: Usd | None = None
    """What the tenant pays of `total`; None in older events: all of it."""
    pool: str | None = None
    """Name of the node pool; None in older events."""
    device_seconds: Seconds | None = None
    """Seconds of all devices that the nodes had; None in older events."""


class BudgetReached(Message):
    """An attempt must end, for a budget would be spent before it could save a checkpoint later."""

    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    attempt: Attempt
    budget: Literal["job", "month"]
    """Whether it is the job's own, or that of its tenant in this month."""
    limit: Usd
    """The budget."""
    spent: Usd
    """What counts against it, the running attempt's cost so far included."""
    message: str
    """What was spent and what is allowed, for people."""
