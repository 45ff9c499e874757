"""The registry's word: names, base models, and what each slot shall serve."""

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
from shared.messaging.unit import Unit
from shared.service import Service


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
        for slot in await store.slots_on_base(unit.conn, event.base_model, event.stale_sha):
            await apply(unit, slots.on_stale(slot, event, now=unit.now, keep=self._keep))

    async def approved(self, event: DeploymentApproved, unit: Unit) -> None:
        full_name = await store.find_model_name(unit.conn, event.model_id)
        if full_name is None:
            raise ParentUnknown(f"model:{event.model_id}")
        await store.lock_base_model(unit.conn, event.base_model)
        is_stale = await store.is_stale(unit.conn, event.base_model, event.base_sha)
        slot = await store.get_slot(unit.conn, event.tenant, event.slot)
        await apply(unit, slots.on_approved(slot, event, full_name=full_name, is_stale=is_stale))

    async def withdrawn(self, event: DeploymentWithdrawn, unit: Unit) -> None:
        slot = await store.get_slot(unit.conn, event.tenant, event.slot)
        await apply(unit, slots.on_withdrawn(slot, event, now=unit.now, keep=self._keep))

    async def load_candidate(self, command: LoadCandidate, unit: Unit) -> None:
        """The next round loads it. Raises Refused where nothing could."""
        pool = pool_of(command.base_sha)
        if not await store.has_ready_replica(unit.conn, pool):
            raise Refused("replica", f"no replica of {pool} is ready", subject_id=command.eval_id)
        assert unit.envelope is not None, "commands come as messages"
        candidate = candidates.on_asked(command, command_id=unit.envelope.id)
        await store.save_candidate(unit.conn, candidate)

    async def unload_candidate(self, command: UnloadCandidate, unit: Unit) -> None:
        """The next round unloads what nobody knows of any more."""
        await store.forget_candidate(unit.conn, command.eval_id)

    async def use_adapters(self, command: UseAdapters, unit: Unit) -> None:
        """The next look finds them in front of those used longer ago."""
        await store.save_used(unit.conn, [(each.tenant, each.slot) for each in command.slots], at=unit.now)


async def apply(unit: Unit, decision: SlotDecision) -> None:
    await store.save_slot(unit.conn, decision.slot)
    for retired in decision.retired:
        await store.save_retired(unit.conn, retired)
    await unit.emit(*decision.events)
