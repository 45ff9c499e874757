"""Alerts about a tenant's jobs and mutes of their rules, as requests ask for them; `projections` writes both."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from schemas.alert import AlertAction, AlertRule, AlertsMuted, AlertsUnmuted, AlertUnit
from services.gateway.alert_responses import Alert, AlertMute
from services.gateway.model import Row
from services.gateway.projections import into, sent_at
from services.gateway.readmodels import WITH_MUTES
from services.gateway.representations import unix
from services.gateway.store import columns, find, select
from services.gateway.tables import Table
from shared.messaging.unit import Unit
from shared.postgres.database import Database

OF_ALL_JOBS = ""
A_DAY = timedelta(days=1)


class AlertRow(Row):
    number: int
    job_id: str
    attempt: int
    rule: AlertRule
    episode: int
    step: int
    value: float | None
    limit_value: float | None
    unit: AlertUnit | None
    message: str
    raised_at: datetime
    cleared_at: datetime | None
    cleared_by: str
    is_muted: bool
    """Whether nobody was notified when it was raised."""
    action: AlertAction
    mute_job_id: str | None
    """Of the mute that is on now; OF_ALL_JOBS where it is of the whole tenant. None: it is not muted."""
    mute_until: datetime | None
    muted_by: str | None
    muted_at: datetime | None


class MuteRow(Row):
    rule: AlertRule
    job_id: str
    """OF_ALL_JOBS: all of the tenant's."""
    until: datetime | None
    muted_by: str
    muted_at: datetime


@dataclass(frozen=True)
class AlertFilter:
    job_id: str | None = None
    is_open: bool | None = None
    """None: open and cleared ones."""
    is_muted: bool | None = None
    """None: whether or not they are muted now."""
    number: int | None = None
    """The one of this number alone."""


LIST_ALERTS = f"""
    SELECT {columns(AlertRow).replace("job_id", "alert.job_id", 1)} {WITH_MUTES}
     WHERE tenant = $1 AND ($2::bigint IS NULL OR number < $2) AND ($3::text IS NULL OR alert.job_id = $3)
       AND ($4::boolean IS NULL OR (cleared_at IS NULL) = $4)
       AND ($5::boolean IS NULL OR (mute_job_id IS NOT NULL) = $5) AND ($6::bigint IS NULL OR number = $6)
     ORDER BY number DESC LIMIT $7"""
COUNT_OPEN = f"SELECT count(*) {WITH_MUTES} WHERE tenant = $1 AND cleared_at IS NULL AND mute_job_id IS NULL"
COUNT_SINCE = """
    SELECT count(*) FROM alert WHERE tenant = $1 AND raised_at > $2 AND ($3::text IS NULL OR job_id = $3)"""
HAS_ALERT = "SELECT EXISTS (SELECT FROM alert WHERE tenant = $1 AND number = $2)"
MUTES = f"""
    SELECT {columns(MuteRow)} FROM alert_mute WHERE tenant = $1 AND (until IS NULL OR until > now())"""
LIST_MUTES = f"{MUTES} AND (rule, job_id) > ($2, $3) ORDER BY rule, job_id LIMIT $4"
FIND_MUTE = f"{MUTES} AND rule = $2 AND job_id = $3"
FORGET_MUTE = "DELETE FROM alert_mute WHERE tenant = $1 AND rule = $2 AND job_id = $3"
PRUNE_MUTES = """
    DELETE FROM alert_mute WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM alert_mute AS old
         WHERE muted_at < now() - $1::interval
           AND (until < now() OR (SELECT true FROM ended_job WHERE ended_job.job_id = old.job_id)) LIMIT $2))"""

MUTE = Table("alert_mute", ("tenant", "rule", "job_id"))
MUTED = into(
    MUTE, "until", "muted_by", muted_at=sent_at, job_id=lambda event, unit: event.job_id or OF_ALL_JOBS
)


async def muted(event: AlertsMuted, unit: Unit) -> None:
    await MUTED.apply(event, unit)


async def unmuted(event: AlertsUnmuted, unit: Unit) -> None:
    await unit.conn.execute(FORGET_MUTE, event.tenant, event.rule, event.job_id or OF_ALL_JOBS)


async def list_alerts(
    database: Database, tenant: str, alert_filter: AlertFilter, *, before: int | None, limit: int
) -> list[AlertRow]:
    """Return matching alerts, the newest first."""
    matching = (
        *(alert_filter.job_id, alert_filter.is_open, alert_filter.is_muted),
        alert_filter.number,
    )
    return await select(AlertRow, database, LIST_ALERTS, tenant, before, *matching, limit)


async def count_open_alerts(database: Database, tenant: str) -> int:
    """Return how many are open that are not muted."""
    return int(await database.fetchval(COUNT_OPEN, tenant))


async def count_alerts_of_day(database: Database, tenant: str, job_id: str | None) -> int:
    """Return how many were raised within 24 hours, of the tenant or of one job."""
    return int(await database.fetchval(COUNT_SINCE, tenant, database.now() - A_DAY, job_id))


async def has_alert(database: Database, tenant: str, number: int | None) -> bool:
    return bool(await database.fetchval(HAS_ALERT, tenant, number))


async def list_mutes(
    database: Database, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int
) -> list[MuteRow]:
    """Return mutes that have not ended, by rule and job."""
    return await select(MuteRow, database, LIST_MUTES, tenant, *after, limit)


async def find_mute(database: Database, tenant: str, rule: AlertRule, job_id: str | None) -> MuteRow | None:
    return await find(MuteRow, database, FIND_MUTE, tenant, rule, job_id or OF_ALL_JOBS)


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
        unit=row.unit,
        action=row.action,
        message=row.message,
        cleared_by=row.cleared_by,
        was_muted=row.is_muted,
        mute=_mute_of(row),
    )


def _mute_of(row: AlertRow) -> AlertMute | None:
    if row.mute_job_id is None or row.muted_by is None or row.muted_at is None:
        return None
    return mute_representation(
        MuteRow(
            rule=row.rule,
            job_id=row.mute_job_id,
            until=row.mute_until,
            muted_by=row.muted_by,
            muted_at=row.muted_at,
        )
    )


def mute_id(rule: AlertRule, job_id: str | None) -> str:
    return f"{rule.value}:{job_id}" if job_id else rule.value


def mute_representation(row: MuteRow) -> AlertMute:
    return AlertMute(
        id=mute_id(row.rule, row.job_id),
        object="alert.mute",
        created_at=unix(row.muted_at),
        rule=row.rule,
        job_id=row.job_id or None,
        until=unix(row.until) if row.until else None,
        muted_by=row.muted_by,
    )
