"""Deploy, roll back, undeploy; what the serving controller answered."""

import re

from schemas.deployment import DeploymentFailed, DeploymentReady
from schemas.model import DeployModel, RollbackDeployment, UndeployModel
from services.registry import store
from services.registry.decide import slots, versions
from services.registry.decide.slots import SlotDecision
from services.registry.handlers.versions import of_tenant
from services.registry.model import Slot
from shared.errors import Refused
from shared.log import get_logger
from shared.messaging.unit import Unit
from shared.service import Service

log = get_logger(__name__)

SLOT_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,255}$")


def register(service: Service) -> None:
    service.on(DeployModel, deploy)
    service.on(RollbackDeployment, roll_back)
    service.on(UndeployModel, undeploy)
    service.on(DeploymentReady, ready)
    service.on(DeploymentFailed, failed)


async def deploy(command: DeployModel, unit: Unit) -> None:
    if not SLOT_NAME.fullmatch(command.slot):
        raise Refused("bad_name", f"slot {command.slot!r}: expected {SLOT_NAME.pattern}", param="slot")
    version = await of_tenant(unit, command.tenant, command.model_id)
    base = await store.find_base_model(unit.conn, version.base_model)
    versions.require_gated(version)
    versions.require_current(version, base.base_sha if base else None)
    names = await store.base_model_names(unit.conn)
    slot = await store.get_slot(unit.conn, command.tenant, command.slot)
    await _apply(unit, slots.deploy(slot, version, base_models=names))


async def roll_back(command: RollbackDeployment, unit: Unit) -> None:
    servable = await store.servable_versions(unit.conn, command.tenant, command.slot)
    slot = await _of_tenant(unit, command.tenant, command.slot)
    await _apply(unit, slots.roll_back(slot, servable))


async def undeploy(command: UndeployModel, unit: Unit) -> None:
    await _apply(unit, slots.undeploy(await _of_tenant(unit, command.tenant, command.slot)))


async def ready(event: DeploymentReady, unit: Unit) -> None:
    slot = await store.find_slot(unit.conn, event.tenant, event.slot)
    if slot is None:
        log.warning("deployment of an unknown slot", slot=event.slot, tenant=event.tenant)
        return
    await _apply(unit, slots.on_ready(slot, event))


async def failed(event: DeploymentFailed, unit: Unit) -> None:
    servable = await store.servable_versions(unit.conn, event.tenant, event.slot)
    slot = await store.find_slot(unit.conn, event.tenant, event.slot)
    if slot is None:
        log.warning("deployment of an unknown slot", slot=event.slot, tenant=event.tenant)
        return
    await _apply(unit, slots.on_failed(slot, event, servable))


async def _of_tenant(unit: Unit, tenant: str, name: str) -> Slot:
    """Return the tenant's slot. Raises Refused: another tenant's is as unknown as one that never was."""
    slot = await store.find_slot(unit.conn, tenant, name)
    if slot is None:
        raise Refused("unknown_slot", f"tenant {tenant} has no slot {name!r}", param="slot")
    return slot


async def _apply(unit: Unit, decision: SlotDecision) -> None:
    await store.save_slot(unit.conn, decision.slot)
    await unit.emit(*decision.events)
