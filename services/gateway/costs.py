"""What attempts cost, in groups, as requests ask for it; `handlers` keeps a row for each CostAccrued."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal, get_args

from services.gateway import responses
from services.gateway.model import Row
from services.gateway.quotas import next_month
from services.gateway.store import columns, find, select
from shared.postgres.database import Database

GroupedBy = Literal["job", "sweep", "experiment", "pool", "day", "month"]
GroupedByOfAll = Literal["tenant", "job", "sweep", "experiment", "pool", "day", "month"]
MOST_GROUPS = 1_000
MOST_LINES = 100_000
"""Groups that a file has at most."""
CENT = Decimal("0.01")
STEERS_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is a formula to programs that open the file."""


class CostRow(Row):
    name: str | None
    attempts: int
    device_seconds: float
    cost: Decimal
    charged: Decimal
    spot_waste: Decimal


class AttemptCost(Row):
    """What an attempt that has ended cost; of what is not charged, the reason is its class of failure."""

    attempt: int
    pool: str
    capacity_type: str
    device_seconds: float
    cost: Decimal
    charged: Decimal
    failure_class: str | None
    ended_at: datetime


@dataclass(frozen=True)
class Period:
    """Attempts count when they have ended."""

    since: datetime
    until: datetime


ALWAYS = Period(datetime(2000, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC))
NAMES: Mapping[str, str] = {
    "tenant": "attempt_cost.tenant",
    "job": "attempt_cost.job_id",
    "sweep": "job.spec -> 'trial' ->> 'sweep_id'",
    "experiment": "job.spec -> 'metadata' ->> 'experiment'",
    "pool": "attempt_cost.pool",
    "day": "to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    "month": "to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM')",
    "all": "NULL",
}
IN_TIME = ("day", "month")


SUMS = """
    count(*) AS attempts, coalesce(sum(device_seconds), 0) AS device_seconds,
    coalesce(sum(attempt_cost.cost), 0) AS cost, coalesce(sum(charged), 0) AS charged,
    coalesce(sum(attempt_cost.cost) FILTER (WHERE failure_class = 'preempted'
                                              AND capacity_type = 'spot'), 0) AS spot_waste"""


def _query(by: str) -> str:
    """Return the statement for groups by this; those of times in their order, else the most expensive first."""
    order = "name" if by in IN_TIME else "cost DESC, name"
    return f"""
        SELECT {NAMES[by]} AS name, {SUMS}
          FROM attempt_cost LEFT JOIN job USING (job_id)
         WHERE ($1::text IS NULL OR attempt_cost.tenant = $1) AND ended_at >= $2 AND ended_at < $3
         GROUP BY 1 ORDER BY {order} LIMIT $4"""


QUERIES = {by: _query(by) for by in NAMES}
assert NAMES.keys() - {"all"} == {*get_args(GroupedByOfAll)}, "each group has its statement"

LIST_ATTEMPTS = f"""
    SELECT {columns(AttemptCost)} FROM attempt_cost WHERE job_id = $1 AND tenant = $2
     ORDER BY attempt DESC LIMIT $3"""
TOTAL_OF_JOB = f"SELECT NULL AS name, {SUMS} FROM attempt_cost WHERE job_id = $1 AND tenant = $2"
NEWEST = "SELECT max(ended_at) FROM attempt_cost WHERE tenant = $1"
NEWEST_OF_ALL = """
    SELECT max(newest) FROM tenant CROSS JOIN LATERAL (
           SELECT max(ended_at) AS newest FROM attempt_cost WHERE attempt_cost.tenant = tenant.name) AS of_tenant"""


def period_of(month: str | None) -> Period:
    """Return the calendar month of UTC, written as `2026-11`; all time for None."""
    if month is None:
        return ALWAYS
    since = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    return Period(since, next_month(since))


async def list_costs(
    database: Database, tenant: str | None, by: str, period: Period, *, at_most: int
) -> list[CostRow]:
    """Return the groups of a tenant, or of all tenants together."""
    return await select(CostRow, database, QUERIES[by], tenant, period.since, period.until, at_most)


async def find_total(database: Database, tenant: str | None, period: Period) -> CostRow:
    rows = await list_costs(database, tenant, "all", period, at_most=1)
    return (
        rows[0]
        if rows
        else CostRow(
            name=None,
            attempts=0,
            device_seconds=0,
            cost=Decimal(0),
            charged=Decimal(0),
            spot_waste=Decimal(0),
        )
    )


async def list_attempts(database: Database, tenant: str, job_id: str, *, at_most: int) -> list[AttemptCost]:
    """Return the attempts of a job that have ended, the newest first."""
    return await select(AttemptCost, database, LIST_ATTEMPTS, job_id, tenant, at_most)


async def total_of_job(database: Database, tenant: str, job_id: str) -> CostRow:
    total = await find(CostRow, database, TOTAL_OF_JOB, job_id, tenant)
    assert total is not None, "an aggregate has a row"
    return total


async def find_newest(database: Database, tenant: str | None) -> datetime | None:
    """Return when the attempt of the tenant, or of all, ended that is the last to have ended; None where none has."""
    asked = (NEWEST_OF_ALL,) if tenant is None else (NEWEST, tenant)
    ended_at: datetime | None = await database.fetchval(*asked)
    return ended_at


def _sums(row: CostRow) -> dict[str, object]:
    hours = row.device_seconds / 3600
    return {
        "attempts": row.attempts,
        "device_hours": round(hours, 6),
        "cost_usd": str(row.cost),
        "charged_usd": str(row.charged),
        "free_usd": str(row.cost - row.charged),
        "spot_waste_usd": str(row.spot_waste),
        "usd_per_device_hour": str((row.cost / Decimal(str(hours))).quantize(CENT)) if hours > 0 else None,
    }


def sums(row: CostRow) -> responses.CostSums:
    return responses.CostSums.model_validate(_sums(row))


def group(row: CostRow) -> responses.CostGroup:
    return responses.CostGroup.model_validate({"name": row.name} | _sums(row))


def as_csv(by: str, rows: Sequence[CostRow]) -> str:
    """Return a file with a line for each group."""
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow((by, *responses.CostSums.model_fields))
    for row in rows:
        name = row.name or ""
        safe = f"'{name}" if name.startswith(STEERS_SPREADSHEETS) else name
        lines.writerow((safe, *_sums(row).values()))
    return file.getvalue()
