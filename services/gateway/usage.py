"""What a tenant has and asks for, compared with its quotas."""

from datetime import datetime, timedelta

from schemas.base import Message
from schemas.cost import LimitSpending
from schemas.dataset import SubmitDataset
from schemas.evaluation import ReevaluateModel
from schemas.job import CancelJob, LimitDevices, RetryJob, SubmitJob
from schemas.model import UndeployModel
from schemas.sweep import CancelSweep, SubmitSweep
from services.gateway import budgets, exports, store
from services.gateway.quotas import QuotaExceeded, Quotas, month_reached_at, month_start, next_month
from services.gateway.webhooks import store as webhook_store
from shared.messaging.unit import Unit
from shared.postgres.database import Connection, Database

A_MINUTE = timedelta(minutes=1)
A_DAY = timedelta(days=1)
ANSWERED_WITHIN = timedelta(hours=1)
"""A job that was asked for longer ago, and that nobody answered, does not count any more."""

RELEASES = (CancelJob, CancelSweep, UndeployModel)
"""Commands that free what others wait for, so that they are counted and never refused."""


async def send(unit: Unit, tenant: str, defaults: Quotas, *commands: Message) -> list[str]:
    """Emit what a tenant asks for; the ids of the commands. Raises QuotaExceeded, and then nothing is sent."""
    quotas = defaults.changed_by(await store.find_quotas(unit.conn, tenant) or {})
    is_release = all(isinstance(command, RELEASES) for command in commands)
    trials = sum(each.spec.most_trials for each in commands if isinstance(each, SubmitSweep))
    limit = None if is_release else quotas.commands_per_day
    await _count_commands(unit, tenant, limit, len(commands) + trials)
    jobs = {each: _new_job(command) for each, command in enumerate(commands) if _new_job(command)}
    at_once = sum(each.spec.concurrency for each in commands if isinstance(each, SubmitSweep))
    if jobs or at_once:
        await _require_open_jobs(unit, tenant, quotas.open_jobs, at_once or 1)
        await _require_budget(unit, tenant, quotas.cost_per_month)
    if any(isinstance(command, SubmitDataset) for command in commands):
        await _require_open_datasets(unit.conn, tenant, quotas.open_datasets)
    command_ids = await unit.emit(*commands)
    for each, job_id in jobs.items():
        await unit.conn.execute(store.ASK_JOB, command_ids[each], job_id, tenant, unit.now)
    for command_id, command in zip(command_ids, commands, strict=True):
        if isinstance(command, ReevaluateModel):
            await _keep_holdout(unit, command_id, command.model_id)
    return command_ids


async def _keep_holdout(unit: Unit, command_id: str, model_id: str) -> None:
    """Keep the holdout from the request on, whoever deletes it meanwhile."""
    await unit.conn.execute(store.HOLD_HOLDOUT, model_id)
    await unit.conn.execute(store.ASK_EVALUATION, command_id, model_id, unit.now)


async def apply_limits(unit: Unit, defaults: Quotas, tenant: str | None = None) -> None:
    """Have scheduler and tracker apply what has changed of `running_devices` and `cost_per_month`.

    While the month's budget is used up, no device may be taken: queued jobs wait.
    """
    for limits in await budgets.lock_limits(unit.conn, tenant, month=month_start(unit.now)):
        quotas = defaults.changed_by(limits.quotas)
        is_changed = quotas.cost_per_month != limits.limited_cost
        heard_at = None if is_changed else limits.budget_reached_at
        reached_at = month_reached_at(quotas.cost_per_month, limits.charged, heard_at, now=unit.now)
        devices = quotas.running_devices if reached_at is None else 0
        if is_changed:
            await unit.emit(LimitSpending(tenant=limits.name, cost_per_month=quotas.cost_per_month))
            await unit.conn.execute(budgets.SET_LIMITED_COST, limits.name, quotas.cost_per_month)
        if reached_at != limits.budget_reached_at:
            await unit.conn.execute(budgets.SET_BUDGET_REACHED, limits.name, reached_at)
        if devices != limits.limited_devices:
            await unit.emit(LimitDevices(tenant=limits.name, devices=devices))
            await unit.conn.execute(budgets.SET_LIMITED_DEVICES, limits.name, devices)


async def look_at_budgets(unit: Unit, defaults: Quotas) -> None:
    """Hold the jobs of tenants whose budget was just reached, and let them begin in the next month."""
    for row in await unit.conn.fetch(budgets.LIST_REACHED):
        await apply_limits(unit, defaults, row["name"])


async def note_answer(unit: Unit, tenant: str, job_id: str) -> None:
    """The job is known to the scheduler, or the command that asked for it was refused."""
    command_id = unit.envelope.causation_id if unit.envelope else None
    await unit.conn.execute(store.ANSWER_JOB, tenant, job_id, command_id)


async def require_bytes(database: Database, tenant: str, limit: int | None, more: int) -> None:
    """Raises QuotaExceeded. Files that are sent at the same time may pass together."""
    if limit is None:
        return
    stored = await _stored_bytes(database, tenant)
    if stored + more > limit:
        message = f"found {stored} bytes of files and exports and {more} more"
        raise QuotaExceeded("stored_bytes", message, limit=limit, again_in=A_DAY)


async def _stored_bytes(database: Database, tenant: str) -> int:
    files: int = await database.fetchval(store.COUNT_BYTES, tenant)
    exported: int = await database.fetchval(exports.BYTES_OF_TENANT, tenant)
    return files + exported


async def usage_of(database: Database, tenant: str, *, now: datetime) -> dict[str, int | float]:
    """Return what the tenant uses of the quotas that are counted in tables."""
    _, charged = await budgets.find_month(database, tenant, month=month_start(now))
    return {
        "cost_per_month": float(charged),
        "commands_per_day": await database.fetchval(store.COUNT_COMMANDS, tenant, now.date()),
        "open_jobs": await database.fetchval(store.COUNT_OPEN_JOBS, tenant, now - ANSWERED_WITHIN),
        "open_datasets": await database.fetchval(store.COUNT_OPEN_DATASETS, tenant),
        "stored_bytes": await _stored_bytes(database, tenant),
        "webhook_endpoints": await database.fetchval(webhook_store.COUNT_ENDPOINTS, tenant),
    }


async def _count_commands(unit: Unit, tenant: str, limit: int | None, more: int) -> None:
    today = unit.now.date()
    count = await unit.conn.fetchval(store.ADD_COMMANDS, tenant, today, more)
    if limit is not None and count > limit:
        tomorrow = unit.now.replace(hour=0, minute=0, second=0, microsecond=0) + A_DAY
        message = f"found {count - more} commands of today and {more} more"
        raise QuotaExceeded("commands_per_day", message, limit=limit, again_in=tomorrow - unit.now)
    await unit.conn.execute(store.FORGET_DAYS, tenant, today)


async def _require_open_jobs(unit: Unit, tenant: str, limit: int | None, more: int) -> None:
    await unit.conn.execute(store.FORGET_ASKED, tenant, unit.now - ANSWERED_WITHIN)
    if limit is None:
        return
    is_open = await unit.conn.fetchval(store.COUNT_OPEN_JOBS, tenant, unit.now - ANSWERED_WITHIN)
    if is_open + more > limit:
        message = f"found {is_open} jobs that have not ended" + (f" and {more} more" if more > 1 else "")
        raise QuotaExceeded("open_jobs", message, limit=limit, again_in=A_MINUTE)


async def _require_budget(unit: Unit, tenant: str, limit: int | None) -> None:
    if limit is None:
        return
    heard_at, charged = await budgets.find_month(unit.conn, tenant, month=month_start(unit.now))
    if month_reached_at(limit, charged, heard_at, now=unit.now) is not None:
        message = f"found {charged:.2f} US dollars charged this month, which leaves none for another attempt"
        raise QuotaExceeded("cost_per_month", message, limit=limit, again_in=next_month(unit.now) - unit.now)


async def _require_open_datasets(conn: Connection, tenant: str, limit: int | None) -> None:
    if limit is None:
        return
    is_open = await conn.fetchval(store.COUNT_OPEN_DATASETS, tenant)
    if is_open >= limit:
        message = f"found {is_open} datasets that are not validated yet"
        raise QuotaExceeded("open_datasets", message, limit=limit, again_in=A_MINUTE)


def _new_job(command: Message) -> str | None:
    if isinstance(command, SubmitJob):
        return command.job_id
    return command.new_job_id if isinstance(command, RetryJob) else None
