"""cost.events: money spent by jobs."""

from datetime import datetime

from schemas.base import Attempt, CapacityType, FailureClass, JobId, Message, Seconds, TenantName, Usd


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


class BudgetReached(Message):
    """An attempt must end, for a budget would be spent before it could save a checkpoint later."""

    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    attempt: Attempt
    limit: Usd
    """The budget."""
    spent: Usd
    """What counts against it, the running attempt's cost so far included."""
    message: str
    """What was spent and what is allowed, for people."""
