"""When an attempt must end for its job's budget. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from schemas.cost import BudgetReached
from services.tracker.decide.cost import price_of

LOOK_EVERY = timedelta(seconds=5)
"""How often what runs is compared with its budget."""


@dataclass(frozen=True)
class Burn:
    """An attempt that holds nodes, of a job with a budget."""

    job_id: str
    tenant: str
    attempt: int
    charged: Decimal
    """US dollars that the tenant pays for the job's earlier attempts."""
    price_per_hour: Decimal
    """Of all nodes of the attempt."""
    began_at: datetime
    max_cost: Decimal
    grace_seconds: float
    """Time in which a stopped attempt saves its checkpoint, at most."""

    def spent(self, now: datetime) -> Decimal:
        return self.charged + price_of(self.price_per_hour, now - self.began_at)

    @property
    def reserve(self) -> Decimal:
        """US dollars of a stop that is asked for at the next look: until then, and until a checkpoint is saved."""
        return price_of(self.price_per_hour, LOOK_EVERY + timedelta(seconds=self.grace_seconds))


def reached(burn: Burn, *, now: datetime) -> BudgetReached | None:
    """Return that the attempt must end now; None where the next look is early enough."""
    spent, reserve = burn.spent(now), burn.reserve
    if spent + reserve < burn.max_cost:
        return None
    message = (
        f"{spent:.4f} of {burn.max_cost.normalize():f} US dollars are spent, and saving a checkpoint may take "
        f"{reserve:.4f} more"
    )
    return BudgetReached(
        job_id=burn.job_id,
        tenant=burn.tenant,
        attempt=burn.attempt,
        limit=burn.max_cost,
        spent=spent,
        message=message,
    )
