"""When attempts must end for the budget of their job, or of their tenant's month. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from schemas.cost import BudgetReached
from services.tracker.decide.cost import price_of

LOOK_EVERY = timedelta(seconds=5)
"""How often what runs is compared with its budgets."""


@dataclass(frozen=True)
class Burn:
    """An attempt that holds nodes, of a job or a tenant with a budget."""

    job_id: str
    tenant: str
    attempt: int
    charged: Decimal
    """US dollars that the tenant pays for the job's earlier attempts."""
    price_per_hour: Decimal
    """Of all nodes of the attempt."""
    began_at: datetime
    max_cost: Decimal | None
    grace_seconds: float
    """Time in which a stopped attempt saves its checkpoint, at most."""
    is_ending: bool = False
    """Whether it is to end anyway; it costs until it has ended."""

    def cost(self, now: datetime) -> Decimal:
        return price_of(self.price_per_hour, now - self.began_at)

    @property
    def reserve(self) -> Decimal:
        """US dollars of a stop that is asked for at the next look: until then, and until a checkpoint is saved."""
        return price_of(self.price_per_hour, LOOK_EVERY + timedelta(seconds=self.grace_seconds))


@dataclass(frozen=True)
class Month:
    """What a tenant may be charged in the present month, and was."""

    tenant: str
    limit: Decimal
    charged: Decimal


def month_start(now: datetime) -> datetime:
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def reached(burns: Sequence[Burn], months: Sequence[Month], *, now: datetime) -> list[BudgetReached]:
    """Return a fact for each attempt that must end now: at the next look it would be too late."""
    due = {each: fact for each in burns if (fact := _of_job(each, now=now)) is not None}
    for month in months:
        own = [each for each in burns if each.tenant == month.tenant]
        spent = month.charged + sum((each.cost(now) for each in own), Decimal(0))
        reserve = sum((each.reserve for each in own), Decimal(0))
        if spent + reserve >= month.limit:
            message = f"{_sums(spent, month.limit, reserve)}, in {now:%B %Y} (UTC) for all jobs of the tenant"
            due |= {
                each: _fact(each, "month", month.limit, spent, message) for each in own if each not in due
            }
    return [fact for each, fact in due.items() if not each.is_ending]


def _of_job(burn: Burn, *, now: datetime) -> BudgetReached | None:
    spent, reserve = burn.charged + burn.cost(now), burn.reserve
    if burn.max_cost is None or spent + reserve < burn.max_cost:
        return None
    return _fact(burn, "job", burn.max_cost, spent, _sums(spent, burn.max_cost, reserve))


def _sums(spent: Decimal, limit: Decimal, reserve: Decimal) -> str:
    amount = f"{spent:.4f} of {limit.normalize():f} US dollars are spent"
    return f"{amount}, and saving a checkpoint may take {reserve:.4f} more"


def _fact(
    burn: Burn, budget: Literal["job", "month"], limit: Decimal, spent: Decimal, message: str
) -> BudgetReached:
    return BudgetReached(
        job_id=burn.job_id,
        tenant=burn.tenant,
        attempt=burn.attempt,
        budget=budget,
        limit=limit,
        spent=spent,
        message=message,
    )
