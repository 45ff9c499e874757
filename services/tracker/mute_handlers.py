"""Rules that a person mutes, and what of that an alert has when it is raised."""

from schemas.alert import AlertRaised, MuteAlerts, UnmuteAlerts
from services.tracker import mute_store as store
from services.tracker.decide import alerts, mutes
from services.tracker.decide.alerts import Seen
from shared.messaging.unit import Unit
from shared.service import Service


async def mute_alerts(command: MuteAlerts, unit: Unit) -> None:
    await store.lock_mutes(unit.conn, command.tenant)
    decision = mutes.mute(
        command,
        num_mutes=await store.count_mutes(unit.conn, command.tenant, now=unit.now),
        is_muted=await store.is_muted(unit.conn, command.tenant, command.rule, command.job_id, now=unit.now),
        now=unit.now,
    )
    await store.save_mute(unit.conn, decision.mute)
    await unit.emit(decision.fact)


async def unmute_alerts(command: UnmuteAlerts, unit: Unit) -> None:
    await store.lock_mutes(unit.conn, command.tenant)
    of_mute = command.tenant, command.rule, command.job_id
    fact = mutes.unmute(command, is_muted=await store.is_muted(unit.conn, *of_mute, now=unit.now))
    await store.forget_mute(unit.conn, *of_mute)
    await unit.emit(fact)


async def with_mutes(seen: Seen, unit: Unit) -> Seen:
    """Mark which of the alerts that are raised nobody is notified of."""
    rules = {event.rule for event in seen.events if isinstance(event, AlertRaised)}
    if not rules:
        return seen
    watch = seen.watch
    muted = await store.find_muted_rules(unit.conn, watch.tenant, watch.job_id, rules, now=unit.now)
    return alerts.muted(seen, muted)


def register(service: Service) -> None:
    service.on(MuteAlerts, mute_alerts)
    service.on(UnmuteAlerts, unmute_alerts)
