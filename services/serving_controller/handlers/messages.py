"""The registry's word: names, base models, and what each slot shall serve."""

from datetime import timedelta

from schemas.model import (
    AdaptersStale,
    BaseModelRegistered,
    DeploymentApproved,
    DeploymentWithdrawn,
    ModelRegistered,
)
from services.serving_controller import store
from services.serving_controller.decide import slots
from services.serving_controller.decide.slots import SlotDecision
from shared.errors import ParentUnknown
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

    async def model_registered(self, event: ModelRegistered, unit: Unit) -> None:
        await store.save_model_name(unit.conn, event.model_id, event.full_name)
        await unit.release(f"model:{event.model_id}")

    async def base_model_registered(self, event: BaseModelRegistered, unit: Unit) -> None:
        await store.save_base_model(unit.conn, event.name, event.base_sha)

    async def adapters_stale(self, event: AdaptersStale, unit: Unit) -> None:
        await store.save_stale(unit.conn, event.base_model, event.stale_sha)
        for slot in await store.slots_on_base(unit.conn, event.base_model, event.stale_sha):
            await apply(unit, slots.on_stale(slot, event, now=unit.now, keep=self._keep))

    async def approved(self, event: DeploymentApproved, unit: Unit) -> None:
        full_name = await store.find_model_name(unit.conn, event.model_id)
        if full_name is None:
            raise ParentUnknown(f"model:{event.model_id}")
        is_stale = await store.is_stale(unit.conn, event.base_model, event.base_sha)
        slot = await store.get_slot(unit.conn, event.tenant, event.slot)
        await apply(unit, slots.on_approved(slot, event, full_name=full_name, is_stale=is_stale))

    async def withdrawn(self, event: DeploymentWithdrawn, unit: Unit) -> None:
        slot = await store.get_slot(unit.conn, event.tenant, event.slot)
        await apply(unit, slots.on_withdrawn(slot, event, now=unit.now, keep=self._keep))


async def apply(unit: Unit, decision: SlotDecision) -> None:
    await store.save_slot(unit.conn, decision.slot)
    for retired in decision.retired:
        await store.save_retired(unit.conn, retired)
    await unit.emit(*decision.events)
