"""What tenants may be charged in a month, and were; and the limits that other services apply."""

from datetime import datetime
from decimal import Decimal

from services.gateway.model import JsonObject, Row
from services.gateway.store import Source, select
from shared.postgres.database import Connection

CHARGED = (
    "coalesce((SELECT sum(charged) FROM attempt_cost WHERE tenant = tenant.name AND ended_at >= {month}), 0)"
)
LIMITS = f"""
    SELECT name, quotas, limited_devices, limited_cost, budget_reached_at, {CHARGED.format(month="$2")} AS charged
      FROM tenant WHERE $1::text IS NULL OR name = $1 ORDER BY name FOR UPDATE"""
MONTH_OF = f"SELECT budget_reached_at, {CHARGED.format(month='$2')} AS charged FROM tenant WHERE name = $1"
SET_LIMITED_DEVICES = "UPDATE tenant SET limited_devices = $2 WHERE name = $1"
SET_LIMITED_COST = "UPDATE tenant SET limited_cost = $2 WHERE name = $1"
SET_BUDGET_REACHED = "UPDATE tenant SET budget_reached_at = $2 WHERE name = $1"
# What was charged less than it seemed; when it is looked at next, it is of an earlier month.
REOPEN_BUDGET = (
    "UPDATE tenant SET budget_reached_at = 'epoch' WHERE name = $1 AND budget_reached_at IS NOT NULL"
)
LIST_REACHED = "SELECT name FROM tenant WHERE budget_reached_at IS NOT NULL ORDER BY name"


class TenantLimits(Row):
    """A tenant's quotas, the limits that scheduler and tracker were sent last, and what it was charged this month."""

    name: str
    quotas: JsonObject
    limited_devices: int | None
    limited_cost: int | None
    budget_reached_at: datetime | None
    charged: Decimal


async def lock_limits(conn: Connection, tenant: str | None, *, month: datetime) -> list[TenantLimits]:
    """Lock and return the limits of the tenant, or of all.

    month: when it began.
    """
    return await select(TenantLimits, conn, LIMITS, tenant, month)


async def find_month(source: Source, tenant: str, *, month: datetime) -> tuple[datetime | None, Decimal]:
    """Return when the tenant's budget was reached, as was heard last, and what was charged since the month began."""
    row = await source.fetchrow(MONTH_OF, tenant, month)
    assert row is not None, f"tenant {tenant} exists"
    return row["budget_reached_at"], row["charged"]
