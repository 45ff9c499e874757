"""The registry's word: names, base models, and what each slot shall serve."""

from dataclasses import replace
from datetime import timedelta

from schemas.deployment import LoadCandidate, UnloadCandidate, UseAdapters
from schemas.model import (
    AdaptersStale,
    BaseModelRegistered,
    DeploymentApproved,
    DeploymentWithdrawn,
    ModelRegistered,
)
from services.serving_controller import store
from services.serving_controller.decide import candidates, pools, slots
from services.serving_controller.decide.slots import SlotDecision
from services.serving_controller.model import pool_of
from shared.errors import ParentUnknown, Refused
from shared.messaging.tasks import work_nothing
from shared.messaging.unit import Task, Unit
from shared.service import Service

STOPPED_TOGETHER = 50
"""Slots in one transaction: some three hundred statements."""


class StopStale(Task, frozen=True):
    """A batch of the slots that serve, or shall serve, what was trained on files that a name pointed to before."""

    event_id: str
    base_model: str
    stale_sha: str
    new_sha: str
    after: tuple[str, str] = ("", "")
    """Tenant and name of the last slot of the batch before."""

    @property
    def key(self) -> str:
        return self.event_id


class Messages:
    def __init__(self, *, keep: timedelta) -> None:
        self._keep = keep

    def register(self, service: Service) -> None:
        service.on(ModelRegistered, self.model_registered)
        service.on(BaseModelRegistered, self.base_model_registered)
        service.on(AdaptersStale, self.adapters_stale)
        service.on(DeploymentApproved, self.approved)
        service.on(DeploymentWithdrawn, self.withdrawn)
        service.on(LoadCandidate, self.load_candidate)
        service.on(UnloadCandidate, self.unload_candidate)
        service.on(UseAdapters, self.use_adapters)
        service.on_task(StopStale, work=work_nothing, done=self.stop_stale, failed=_not_stopped)

    async def model_registered(self, event: ModelRegistered, unit: Unit) -> None:
        await store.save_model_name(unit.conn, event.model_id, event.full_name)
        await unit.release(f"model:{event.model_id}")

    async def base_model_registered(self, event: BaseModelRegistered, unit: Unit) -> None:
        layers = pools.adapter_layers(event.capabilities)
        await store.lock_base_model(unit.conn, event.name)
        await store.save_base_model(unit.conn, event.name, event.base_sha, adapter_layers=layers)

    async def adapters_stale(self, event: AdaptersStale, unit: Unit) -> None:
        await store.lock_base_model(unit.conn, event.base_model)
        await store.save_stale(unit.conn, event.base_model, event.stale_sha)
        assert unit.envelope is not None, "a change of a base model comes as a message"
        await self._stop(StopStale(event_id=unit.envelope.id, **event.model_dump()), unit)

    async def stop_stale(self, task: StopStale, _: None, unit: Unit) -> None:
        """One batch, unless the name points to those files again."""
        await store.lock_base_model(unit.conn, task.base_model)
        if await store.is_stale(unit.conn, task.base_model, task.stale_sha):
            await self._stop(task, unit)

    async def _stop(self, task: StopStale, unit: Unit) -> None:
        event = AdaptersStale(base_model=task.base_model, stale_sha=task.stale_sha, new_sha=task.new_sha)
        batch = await store.slots_on_base(
            unit.conn, task.base_model, task.stale_sha, after=task.after, at_most=STOPPED_TOGETHER
        )
        for slot in batch:
            await apply(unit, slots.on_stale(slot, event, now=unit.now, keep=self._keep))
        if len(batch) == STOPPED_TOGETHER:
            last = batch[-1]
            await unit.start_task(task.model_copy(update={"after": (last.tenant, last.name)}))

    async def approved(self, event: DeploymentApproved, unit: Unit) -> None:
        full_name = await store.find_model_name(unit.conn, event.model_id)
        if full_name is None:
            raise ParentUnknown(f"model:{event.model_id}")
        await store.lock_base_model(unit.conn, event.base_model)
        is_stale = await store.is_stale(unit.conn, event.base_model, event.base_sha)
        slot = await store.get_slot(unit.conn, event.tenant, event.slot)
        assert unit.envelope is not None, "approvals come as messages"
        decision = slots.on_approved(
            slot, event, at=unit.envelope.time, full_name=full_name, is_stale=is_stale
        )
        await apply(unit, decision)

    async def withdrawn(self, event: DeploymentWithdrawn, unit: Unit) -> None:
        slot = await store.get_slot(unit.conn, event.tenant, event.slot)
        await apply(unit, slots.on_withdrawn(slot, event, now=unit.now, keep=self._keep))

    async def load_candidate(self, command: LoadCandidate, unit: Unit) -> None:
        """Keep the candidate, which the next round loads. Raises Refused where nothing could."""
        pool = pool_of(command.base_sha)
        if not await store.has_ready_replica(unit.conn, pool):
            raise Refused("replica", f"no replica of {pool} is ready", subject_id=command.eval_id)
        assert unit.envelope is not None, "commands come as messages"
        candidate = candidates.on_asked(command, command_id=unit.envelope.id)
        await store.save_candidate(unit.conn, candidate)

    async def unload_candidate(self, command: UnloadCandidate, unit: Unit) -> None:
        """Forget the candidate: the next round unloads what nobody knows of any more."""
        await store.forget_candidate(unit.conn, command.eval_id)

    async def use_adapters(self, command: UseAdapters, unit: Unit) -> None:
        """The next look finds them in front of those used longer ago."""
        await store.save_used(unit.conn, [(each.tenant, each.slot) for each in command.slots], at=unit.now)


async def apply(unit: Unit, decision: SlotDecision) -> None:
    """Write and emit what was decided. The message that asks for it is the origin of what rounds do with the slot."""
    slot = decision.slot if unit.envelope is None else replace(decision.slot, origin=unit.origin)
    await store.save_slot(unit.conn, slot)
    for retired in decision.retired:
        await store.save_retired(unit.conn, retired)
    await unit.emit(*decision.events, origin=slot.origin)


async def _not_stopped(task: StopStale, error: Exception, unit: Unit) -> None:
    raise error  # it is set aside, with an alarm: slots that serve what is stale must not be forgotten
