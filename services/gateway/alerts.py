"""Alerts about a tenant's jobs, as requests ask for them; `projections` writes them."""

from dataclasses import dataclass
from datetime import datetime

from schemas.alert import AlertAction, AlertRule
from services.gateway.model import Row
from services.gateway.representations import unix
from services.gateway.responses import Alert
from services.gateway.store import select
from shared.postgres.database import Database


class AlertRow(Row):
    number: int
    job_id: str
    attempt: int
    rule: AlertRule
    episode: int
    step: int
    value: float | None
    limit_value: float | None
    message: str
    raised_at: datetime
    cleared_at: datetime | None
    cleared_by: str
    action: AlertAction


@dataclass(frozen=True)
class AlertFilter:
    job_id: str | None = None
    is_open: bool | None = None
    """None: open and cleared ones."""


LIST_ALERTS = """
    SELECT number, job_id, attempt, rule, episode, step, value, limit_value, message, raised_at, cleared_at,
           cleared_by,
           coalesce((SELECT spec -> 'alerts' ->> rule FROM job WHERE job.job_id = alert.job_id), 'notify') AS action
      FROM alert
     WHERE tenant = $1 AND ($2::bigint IS NULL OR number < $2) AND ($3::text IS NULL OR job_id = $3)
       AND ($4::boolean IS NULL OR (cleared_at IS NULL) = $4)
     ORDER BY number DESC LIMIT $5"""
COUNT_OPEN = "SELECT count(*) FROM alert WHERE tenant = $1 AND cleared_at IS NULL"
HAS_ALERT = "SELECT EXISTS (SELECT FROM alert WHERE tenant = $1 AND number = $2)"


async def list_alerts(
    database: Database, tenant: str, alert_filter: AlertFilter, *, before: int | None, limit: int
) -> list[AlertRow]:
    """Return matching alerts, the newest first."""
    matching = (alert_filter.job_id, alert_filter.is_open)
    return await select(AlertRow, database, LIST_ALERTS, tenant, before, *matching, limit)


async def count_open_alerts(database: Database, tenant: str) -> int:
    return int(await database.fetchval(COUNT_OPEN, tenant))


async def has_alert(database: Database, tenant: str, number: int | None) -> bool:
    return bool(await database.fetchval(HAS_ALERT, tenant, number))


def representation(row: AlertRow) -> Alert:
    return Alert(
        id=f"alert-{row.number}",
        object="alert",
        created_at=unix(row.raised_at),
        cleared_at=unix(row.cleared_at) if row.cleared_at else None,
        job_id=row.job_id,
        attempt=row.attempt,
        rule=row.rule,
        episode=row.episode,
        step=row.step,
        value=row.value,
        limit=row.limit_value,
        action=row.action,
        message=row.message,
        cleared_by=row.cleared_by,
    )
