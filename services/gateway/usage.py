"""What a tenant has and asks for, compared with its quotas."""

from datetime import datetime, timedelta

from schemas.base import Message
from schemas.dataset import SubmitDataset
from schemas.evaluation import ReevaluateModel
from schemas.job import CancelJob, LimitDevices, RetryJob, SubmitJob
from schemas.model import UndeployModel
from schemas.sweep import CancelSweep, SubmitSweep
from services.gateway import store
from services.gateway.quotas import QuotaExceeded, Quotas
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


async def limit_devices(unit: Unit, defaults: Quotas, tenant: str | None = None) -> None:
    """Have the scheduler apply what has changed of `running_devices`, of a tenant or of all."""
    for limit in await store.lock_device_limits(unit.conn, tenant):
        devices = defaults.changed_by(limit.quotas).running_devices
        if devices != limit.limited_devices:
            await unit.emit(LimitDevices(tenant=limit.name, devices=devices))
            await unit.conn.execute(store.SET_LIMITED_DEVICES, limit.name, devices)


async def note_answer(unit: Unit, tenant: str, job_id: str) -> None:
    """The job is known to the scheduler, or the command that asked for it was refused."""
    command_id = unit.envelope.causation_id if unit.envelope else None
    await unit.conn.execute(store.ANSWER_JOB, tenant, job_id, command_id)


async def require_bytes(database: Database, tenant: str, limit: int | None, more: int) -> None:
    """Raises QuotaExceeded. Files that are sent at the same time may pass together."""
    if limit is None:
        return
    stored = await database.fetchval(store.COUNT_BYTES, tenant)
    if stored + more > limit:
        message = f"found {stored} bytes of files and {more} more"
        raise QuotaExceeded("stored_bytes", message, limit=limit, again_in=A_DAY)


async def usage_of(database: Database, tenant: str, *, now: datetime) -> dict[str, int]:
    """Return what the tenant uses of the quotas that are counted in tables."""
    return {
        "commands_per_day": await database.fetchval(store.COUNT_COMMANDS, tenant, now.date()),
        "open_jobs": await database.fetchval(store.COUNT_OPEN_JOBS, tenant, now - ANSWERED_WITHIN),
        "open_datasets": await database.fetchval(store.COUNT_OPEN_DATASETS, tenant),
        "stored_bytes": await database.fetchval(store.COUNT_BYTES, tenant),
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
