"""cost.events: money spent by jobs."""

from datetime import datetime

from schemas.base import Attempt, Message, PriceClass, Seconds, Usd


class CostAccrued(Message):
    """An attempt's nodes were released; what they cost."""

    keyed_by = "job_id"
    job_id: str
    tenant: str
    attempt: Attempt
    node_seconds: Seconds
    cost: Usd
    total: Usd
    """Of the job so far."""
    price_class: PriceClass
    until: datetime
