"""ExportModel and DeleteExport: written, compared and stored by a task; deleted by another."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from schemas.base import Delayed
from schemas.exports import ExportActivity
from schemas.model import DeleteExport, ExportModel
from services.registry import export_store
from services.registry.clients import ExportOutcome, ModelExports
from services.registry.decide import exports
from services.registry.decide.exports import ExportDecision
from services.registry.handlers.versions import get_version, of_tenant
from services.registry.model import Export, Version
from shared.errors import CorruptObject, Rejected
from shared.log import get_logger
from shared.messaging.unit import Task, Unit
from shared.service import Service

log = get_logger(__name__)

ATTEMPTS = 3
PROGRESS_SECONDS = 2.0


class WriteExport(Task):
    export_id: str
    model_id: str

    @property
    def key(self) -> str:
        return self.export_id


class RemoveExport(Task):
    export_id: str

    @property
    def key(self) -> str:
        return self.export_id


def register(service: Service, model_exports: ModelExports) -> None:
    async def work(task: WriteExport) -> ExportOutcome:
        async with service.unit() as unit:
            version = await get_version(unit, task.model_id)
            export = await export_store.get_export(unit.conn, task.export_id)
            base = await export_store.get_base_facts(unit.conn, version.base_sha)

        async def publish(activity: ExportActivity, done: int, total: int, seconds: float) -> None:
            async with service.unit() as unit:
                await unit.emit(exports.progressed(version, export, activity, done, total, seconds))

        async with publishing(publish) as advance:
            return await model_exports.export(version, export, base, advance)

    async def remove(task: RemoveExport) -> None:
        await model_exports.delete(task.export_id)

    service.on(ExportModel, export_model)
    service.on(DeleteExport, delete_export)
    service.on_task(
        WriteExport, work=work, done=written, failed=not_written, attempts=ATTEMPTS, waits=writing_waits
    )
    service.on_task(RemoveExport, work=remove, done=removed, failed=not_removed)


async def export_model(command: ExportModel, unit: Unit) -> None:
    version = await of_tenant(unit, command.tenant, command.model_id)
    command = command.model_copy(update={"model_id": version.model_id})
    known = await export_store.find_export(unit.conn, exports.named(command))
    base = await export_store.get_base_facts(unit.conn, version.base_sha)
    decision = exports.start(version, command, known, base)
    await _apply(unit, decision)
    if decision.starts:
        await unit.start_task(
            WriteExport(tenant=version.tenant, export_id=decision.export.export_id, model_id=version.model_id)
        )


async def delete_export(command: DeleteExport, unit: Unit) -> None:
    version = await of_tenant(unit, command.tenant, command.model_id)
    known = await export_store.find_export(unit.conn, command.export_id)
    export = exports.delete(version, command, known)
    await _apply(unit, ExportDecision(export, exports.fact_of(version, export)))
    await unit.start_task(RemoveExport(tenant=version.tenant, export_id=export.export_id))


async def written(task: WriteExport, outcome: ExportOutcome, unit: Unit) -> None:
    version, export = await _under_way(task, unit)
    if outcome.code or outcome.parity is None:
        decision = exports.failed(
            version, export, code=outcome.code, message=outcome.message, parity=outcome.parity
        )
    else:
        decision = exports.ready(version, export, outcome.files, outcome.parity)
    await _apply(unit, decision)


async def not_written(task: WriteExport, error: Exception, unit: Unit) -> None:
    version, export = await _under_way(task, unit)
    is_damaged = isinstance(error, Rejected | CorruptObject | KeyError)
    code = "damaged_model" if is_damaged else "not_written"
    reason = f"{error.args[0]} does not exist" if isinstance(error, KeyError) else str(error)
    await _apply(unit, exports.failed(version, export, code=code, message=reason[:4_000]))


async def writing_waits(task: WriteExport, waiting_for: str, unit: Unit) -> None:
    version, _ = await _under_way(task, unit)
    await unit.emit(Delayed(subject_id=version.job_id, tenant=version.tenant, waiting_for=waiting_for))


async def removed(task: RemoveExport, _: None, unit: Unit) -> None:
    await export_store.delete_export(unit.conn, task.export_id)


async def not_removed(task: RemoveExport, error: Exception, unit: Unit) -> None:
    raise error  # it is set aside, with an alarm: bytes that nobody can see must not stay


async def _under_way(task: WriteExport, unit: Unit) -> tuple[Version, Export]:
    version = await get_version(unit, task.model_id)
    return version, await export_store.get_export(unit.conn, task.export_id)


async def _apply(unit: Unit, decision: ExportDecision) -> None:
    await export_store.save_export(unit.conn, decision.export, now=unit.now)
    await unit.emit(decision.event)


Publish = Callable[[ExportActivity, int, int, float], Awaitable[None]]


@asynccontextmanager
async def publishing(
    publish: Publish,
) -> AsyncIterator[Callable[[ExportActivity, int, int], None]]:
    """Give a function that publishes some of what it is called with, one at a time; nothing waits for it."""
    sending: asyncio.Task[None] | None = None
    current: ExportActivity = "waiting"
    began = sent = 0.0

    def advance(activity: ExportActivity, done: int, total: int) -> None:
        nonlocal sending, current, began, sent
        now = time.monotonic()
        is_new = activity != current
        if is_new:
            current, began = activity, now
        is_busy = sending is not None and not sending.done()
        if not is_busy and (is_new or now - sent >= PROGRESS_SECONDS):
            sent = now
            sending = asyncio.create_task(_logged(publish(activity, done, total, now - began)))

    try:
        yield advance
    finally:
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _logged(publishing: Awaitable[None]) -> None:
    try:
        await publishing
    except Exception as error:  # noqa: BLE001 progress is for people alone: nothing fails by it
        log.warning("progress not published", error=f"{type(error).__name__}: {error}")
