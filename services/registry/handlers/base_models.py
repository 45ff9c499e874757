"""RegisterBaseModel: mirrored and checked by a task, then announced or refused."""

import re

from schemas.base import CommandRefused
from schemas.model import DirectorySource, HubSource, RegisterBaseModel
from services.registry import store
from services.registry.clients import BaseModelMirror, Mirrored
from services.registry.decide import base_models
from services.registry.model import BaseModel
from shared.errors import Refused, Rejected
from shared.messaging.unit import Task, Unit
from shared.service import Service

WITHDRAWN_TOGETHER = 50
"""Slots in one transaction: some hundred statements."""
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")


class ImportBaseModel(Task):
    command_id: str
    name: str
    source: DirectorySource | HubSource
    training_template: str | None = None

    @property
    def key(self) -> str:
        return self.command_id


class WithdrawStale(Task):
    """A batch of slots that serve versions on files that a base model's name pointed to before."""

    base_model: str
    stale_sha: str

    @property
    def key(self) -> str:
        return f"{self.base_model}@{self.stale_sha}"


def register(service: Service, mirror: BaseModelMirror, *, attempts: int) -> None:
    async def work(task: ImportBaseModel) -> Mirrored:
        return await mirror.mirror(task.name, task.source, task.training_template)

    service.on(RegisterBaseModel, asked)
    service.on_task(ImportBaseModel, work=work, done=imported, failed=not_imported, attempts=attempts)
    service.on_task(WithdrawStale, work=nothing_outside, done=withdraw, failed=not_withdrawn)


async def asked(command: RegisterBaseModel, unit: Unit) -> None:
    if not NAME.fullmatch(command.name):
        raise Refused("bad_name", f"name {command.name!r}: expected {NAME.pattern}", param="name")
    assert unit.envelope is not None
    await unit.start_task(
        ImportBaseModel(
            command_id=unit.envelope.id,
            name=command.name,
            source=command.source,
            training_template=command.training_template,
        )
    )


async def imported(task: ImportBaseModel, mirrored: Mirrored, unit: Unit) -> None:
    base = _base_model(task.name, mirrored)
    previous = await store.find_base_model_for_update(unit.conn, task.name)
    registration = base_models.register(base, previous)
    await store.save_base_model(unit.conn, base, mirrored.shapes, now=unit.now)
    await unit.emit(*registration.events)
    await unit.release(f"base:{base.base_sha}")
    if registration.stale_sha is not None:
        await unit.start_task(WithdrawStale(base_model=base.name, stale_sha=registration.stale_sha))


async def nothing_outside(task: WithdrawStale) -> None:
    """Do nothing: all that the task does is in the transaction that ends it."""


async def withdraw(task: WithdrawStale, _: None, unit: Unit) -> None:
    """Withdraw one batch, until none is left or the name points to those files again."""
    base = await store.find_base_model(unit.conn, task.base_model)
    if base is None or base.base_sha == task.stale_sha:
        return
    serving = await store.slots_on_base(
        unit.conn, task.base_model, task.stale_sha, at_most=WITHDRAWN_TOGETHER
    )
    for slot in serving:
        decision = base_models.withdraw(slot, base, task.stale_sha)
        await store.save_slot(unit.conn, decision.slot)
        await unit.emit(*decision.events)
    if serving:
        await unit.start_task(task)


async def not_withdrawn(task: WithdrawStale, error: Exception, unit: Unit) -> None:
    raise error  # it is set aside, with an alarm: slots that serve what is stale must not be forgotten


async def not_imported(task: ImportBaseModel, error: Exception, unit: Unit) -> None:
    refusal = CommandRefused(
        subject_id=task.name,
        command=RegisterBaseModel.type,
        command_id=task.command_id,
        code="bad_base_model" if isinstance(error, Rejected) else "unavailable",
        message=f"base model {task.name}: {error}",
        param="source",
    )
    await unit.emit(refusal)


def _base_model(name: str, mirrored: Mirrored) -> BaseModel:
    manifest = mirrored.manifest
    return BaseModel(
        name=name,
        base_sha=mirrored.base_sha,
        manifest_sha256=mirrored.manifest_sha256,
        source=mirrored.source,
        template_sha256=manifest.template_sha256,
        context_tokens=manifest.context_tokens,
        num_parameters=manifest.num_parameters,
        training_template_sha256=manifest.training_template_sha256,
        capabilities=mirrored.capabilities,
    )
