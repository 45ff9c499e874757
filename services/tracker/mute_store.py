"""SQL of mutes of alert rules."""

from datetime import datetime

from schemas.alert import AlertRule
from services.tracker.decide.mutes import OF_ALL_JOBS, Mute
from shared.postgres.database import Connection, lock_name
from shared.postgres.rows import Columns

MUTE = Columns("tenant, rule, job_id, until, muted_by")
SAVE_MUTE = f"""
    INSERT INTO alert_mute ({MUTE.names}) VALUES ({MUTE.parameters()})
    ON CONFLICT (tenant, rule, job_id) DO UPDATE SET {MUTE.excluded}, muted_at = now()"""
FORGET_MUTE = "DELETE FROM alert_mute WHERE tenant = $1 AND rule = $2 AND job_id = $3"
COUNT_MUTES = "SELECT count(*) FROM alert_mute WHERE tenant = $1 AND (until IS NULL OR until > $2)"
IS_MUTED = """
    SELECT EXISTS (SELECT FROM alert_mute
                    WHERE tenant = $1 AND rule = $2 AND job_id = $3 AND (until IS NULL OR until > $4))"""
MUTED_RULES = """
    SELECT DISTINCT rule FROM alert_mute
     WHERE tenant = $1 AND rule = ANY($2) AND job_id IN ('', $3) AND (until IS NULL OR until > $4)"""
# Of a job that does not train any more nothing is raised.
PRUNE_MUTES = """
    DELETE FROM alert_mute WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM alert_mute AS old
         WHERE muted_at < now() - $1::interval
           AND (until < now() OR (job_id <> '' AND (
               SELECT true FROM watch WHERE watch.job_id = old.job_id AND NOT is_over LIMIT 1) IS NULL)) LIMIT $2))"""


async def lock_mutes(conn: Connection, tenant: str) -> None:
    """Let one command of a tenant be decided at a time."""
    await lock_name(conn, f"tracker mutes {tenant}")


async def count_mutes(conn: Connection, tenant: str, *, now: datetime) -> int:
    return int(await conn.fetchval(COUNT_MUTES, tenant, now))


async def is_muted(
    conn: Connection, tenant: str, rule: AlertRule, job_id: str | None, *, now: datetime
) -> bool:
    return bool(await conn.fetchval(IS_MUTED, tenant, rule, job_id or OF_ALL_JOBS, now))


async def save_mute(conn: Connection, mute: Mute) -> None:
    await conn.execute(SAVE_MUTE, *MUTE.values(mute))


async def forget_mute(conn: Connection, tenant: str, rule: AlertRule, job_id: str | None) -> None:
    await conn.execute(FORGET_MUTE, tenant, rule, job_id or OF_ALL_JOBS)


async def find_muted_rules(
    conn: Connection, tenant: str, job_id: str, rules: set[AlertRule], *, now: datetime
) -> set[AlertRule]:
    """Return which of these rules are muted for the job."""
    rows = await conn.fetch(MUTED_RULES, tenant, sorted(rules), job_id, now)
    return {AlertRule(row["rule"]) for row in rows}
