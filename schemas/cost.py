"""cost.events: money spent by jobs."""

from datetime import datetime

from schemas.base import Attempt, JobId, Message, PriceClass, Seconds, TenantName, Usd


class CostAccrued(Message):
    """An attempt's nodes were released; what they cost."""

    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    attempt: Attempt
    node_seconds: Seconds
    cost: Usd
    total: Usd
    """Of the job so far."""
    price_class: PriceClass
    until: datetime
