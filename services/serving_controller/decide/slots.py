"""What happens to a slot: the highest generation wins, and requests move only when all is loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from schemas.base import Message
from schemas.deployment import (
    DeploymentFailed,
    DeploymentIdle,
    DeploymentReady,
    DeploymentRolledBack,
    DeploymentStopped,
    ReplicaAddress,
    ReplicaSteps,
    Swap,
)
from schemas.model import AdaptersStale, DeploymentApproved, DeploymentWithdrawn
from services.serving_controller.model import (
    Address,
    Approval,
    Failure,
    LoadTimes,
    Retired,
    Route,
    Servable,
    Slot,
    SlotState,
)


@dataclass(frozen=True)
class SlotDecision:
    slot: Slot
    events: tuple[Message, ...] = ()
    retired: tuple[Retired, ...] = ()


@dataclass(frozen=True)
class Served:
    """What one round found about a served name."""

    addresses: frozenset[Address] = frozenset()
    """Ready replicas that have it, probed."""
    is_everywhere: bool = False
    """There is a ready replica, and none is without it."""
    failure: Failure | None = None


def on_approved(
    slot: Slot, approved: DeploymentApproved, *, at: datetime, full_name: str, is_stale: bool
) -> SlotDecision:
    """at: when it was approved."""
    if approved.generation <= slot.generation:
        return SlotDecision(slot)  # an older decision about the slot
    desired = Servable(
        model_id=approved.model_id,
        full_name=full_name,
        kind=approved.kind,
        digest=approved.digest,
        base_model=approved.base_model,
        base_sha=approved.base_sha,
        rank=approved.rank,
    )
    pending = replace(
        slot,
        generation=approved.generation,
        state=SlotState.PENDING,
        desired=desired,
        approval=Approval(approved.generation, at),
    )
    if is_stale:
        return _fail(pending, _stale(desired))
    return SlotDecision(pending)


def on_withdrawn(
    slot: Slot, withdrawn: DeploymentWithdrawn, *, now: datetime, keep: timedelta
) -> SlotDecision:
    if withdrawn.generation <= slot.generation:
        return SlotDecision(slot)
    emptied = replace(slot, generation=withdrawn.generation, state=SlotState.WITHDRAWN, desired=None)
    stopping = slot.route.servable if slot.route else slot.desired
    if stopping is None:
        return SlotDecision(emptied)
    return _stop(emptied, stopping, now=now, keep=keep)


def on_stale(slot: Slot, stale: AdaptersStale, *, now: datetime, keep: timedelta) -> SlotDecision:
    """Unroute what was trained on files that the base model's name does not point to any more."""
    decision = SlotDecision(slot)
    if slot.route is not None and _is_on(slot.route.servable, stale):
        decision = _stop(slot, slot.route.servable, now=now, keep=keep)
    if slot.is_wanted and slot.desired is not None and _is_on(slot.desired, stale):
        failed = _fail(decision.slot, _stale(slot.desired))
        decision = SlotDecision(failed.slot, decision.events + failed.events, decision.retired)
    return decision


def reconcile(
    slot: Slot,
    served_by_name: Mapping[str, Served],
    *,
    times: Sequence[LoadTimes] = (),
    now: datetime,
    keep: timedelta,
) -> SlotDecision:
    """Route the slot by what is loaded where: to the new version only when every replica has it.

    served_by_name: what this round looked at; of names that are not in it nothing is known.
    times: how long loads took, of what slots wait for.
    """
    refreshed = _refresh(slot, served_by_name)
    if slot.desired is None or not slot.is_wanted:
        return refreshed
    served = served_by_name.get(slot.desired.served_name, Served())
    if served.failure is not None and _fails(slot, served, served.failure):
        failed = _fail(refreshed.slot, served.failure)
        return SlotDecision(failed.slot, refreshed.events + failed.events)
    if slot.state is SlotState.PENDING and served.is_everywhere:
        swap = _swap(slot, slot.desired, served, times, now=now)
        return _route(slot, served, swap, now=now, keep=keep)
    return refreshed


def set_idle(slot: Slot, *, now: datetime, keep: timedelta) -> SlotDecision:
    """Requests for it go nowhere until it is loaded again. What the slot shall serve stays what it is."""
    if slot.route is None or not slot.route.addresses:
        return SlotDecision(slot)
    idle = replace(slot, route=replace(slot.route, addresses=frozenset()))
    return SlotDecision(idle, (DeploymentIdle(**_state(slot)),), (Retired(slot.route.servable, now + keep),))


def _fails(slot: Slot, served: Served, failure: Failure) -> bool:
    """What waits fails by any failure. What was served fails once no replica has it and none is asked again.

    It comes back with a replica that did not start: that failure is never final.
    """
    if slot.state is SlotState.PENDING:
        return True
    return failure.is_final and not served.addresses


def _swap(
    slot: Slot, desired: Servable, served: Served, times: Sequence[LoadTimes], *, now: datetime
) -> Swap | None:
    """Return how long the steps took that this generation waited for; None where its approval was not heard.

    Clocks of two processes may be apart by a little: no time is below zero.
    """
    if slot.approved_at is None:
        return None
    starts = {(address.replica_id, address.incarnation) for address in served.addresses}
    awaited = [
        each
        for each in times
        if each.served_name == desired.served_name
        and (each.replica_id, each.incarnation) in starts
        and each.loaded_at >= slot.approved_at
    ]
    last = max((each.loaded_at for each in awaited), default=slot.approved_at)
    return Swap(
        replicas=tuple(_steps(each) for each in awaited),
        route_seconds=max(0.0, (now - last).total_seconds()),
        total_seconds=max(0.0, (now - slot.approved_at).total_seconds()),
    )


def _steps(times: LoadTimes) -> ReplicaSteps:
    return ReplicaSteps(
        replica_id=times.replica_id,
        fetch_seconds=times.fetch_seconds,
        load_seconds=times.load_seconds,
        read_back_seconds=times.read_back_seconds,
        probe_seconds=times.probe_seconds,
    )


def _route(slot: Slot, served: Served, swap: Swap | None, *, now: datetime, keep: timedelta) -> SlotDecision:
    assert slot.desired is not None
    before = slot.route.servable if slot.route else None
    routed = replace(
        slot,
        state=SlotState.READY,
        route=Route(slot.desired, slot.generation, served.addresses),
        served=slot.served | {slot.desired.digest},
    )
    events: list[Message] = [_ready(routed, swap)]
    if before is not None and before.digest != slot.desired.digest and slot.desired.digest in slot.served:
        events.append(_rolled_back(routed, before.digest))
    changed = before is not None and before.served_name != slot.desired.served_name
    retired = (Retired(before, now + keep),) if changed and before is not None else ()
    return SlotDecision(routed, tuple(events), retired)


def _refresh(slot: Slot, served_by_name: Mapping[str, Served]) -> SlotDecision:
    """Report where the routed version is now; that it is nowhere was reported by ReplicaLost."""
    served = served_by_name.get(slot.route.servable.served_name) if slot.route else None
    if slot.route is None or served is None or served.addresses == slot.route.addresses:
        return SlotDecision(slot)
    refreshed = replace(slot, route=replace(slot.route, addresses=served.addresses))
    return SlotDecision(refreshed, (_ready(refreshed),) if served.addresses else ())


def _stop(slot: Slot, stopping: Servable, *, now: datetime, keep: timedelta) -> SlotDecision:
    fact = DeploymentStopped(
        pool=stopping.pool,
        base_sha=stopping.base_sha,
        slot=slot.name,
        tenant=slot.tenant,
        digest=stopping.digest,
        generation=slot.generation,
        model_id=stopping.model_id,
    )
    retired = (Retired(stopping, now + keep),) if slot.route else ()
    return SlotDecision(replace(slot, route=None), (fact,), retired)


def _fail(slot: Slot, failure: Failure) -> SlotDecision:
    """The slot keeps its route: the version before continues serving."""
    assert slot.desired is not None
    fact = DeploymentFailed(
        pool=slot.desired.pool,
        base_sha=slot.desired.base_sha,
        slot=slot.name,
        tenant=slot.tenant,
        digest=slot.desired.digest,
        generation=slot.generation,
        model_id=slot.desired.model_id,
        code=failure.code,
        reason=failure.reason,
        step=failure.step,
    )
    return SlotDecision(replace(slot, state=SlotState.FAILED), (fact,))


def _stale(servable: Servable) -> Failure:
    return Failure(
        "stale",
        f"{servable.full_name} was trained on base {servable.base_model} with sha {servable.base_sha[:12]}, "
        f"which is not what that name points to now",
    )


def _is_on(servable: Servable, stale: AdaptersStale) -> bool:
    return (servable.base_model, servable.base_sha) == (stale.base_model, stale.stale_sha)


def _state(slot: Slot) -> dict[str, Any]:
    """Return the fields of a SlotState about what the slot is routed to."""
    assert slot.route is not None
    servable = slot.route.servable
    return {
        "pool": servable.pool,
        "base_sha": servable.base_sha,
        "slot": slot.name,
        "tenant": slot.tenant,
        "digest": servable.digest,
        "generation": slot.route.generation,
        "model_id": servable.model_id,
    }


def _ready(slot: Slot, swap: Swap | None = None) -> DeploymentReady:
    assert slot.route is not None
    addresses = tuple(replica_address(address) for address in sorted(slot.route.addresses))
    served_name = slot.route.servable.served_name
    return DeploymentReady(**_state(slot), served_name=served_name, replicas=addresses, swap=swap)


def _rolled_back(slot: Slot, previous_digest: str) -> DeploymentRolledBack:
    return DeploymentRolledBack(**_state(slot), previous_digest=previous_digest)


def replica_address(address: Address) -> ReplicaAddress:
    return ReplicaAddress(replica_id=address.replica_id, incarnation=address.incarnation, url=address.url)
