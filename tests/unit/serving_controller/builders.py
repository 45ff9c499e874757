"""Slots, replicas and approvals of the serving controller's tests."""

from datetime import UTC, datetime, timedelta
from typing import Any

from schemas.model import AdaptersStale, DeploymentApproved, DeploymentWithdrawn
from services.serving_controller.model import (
    Address,
    Phase,
    Replica,
    ReplicaSet,
    Route,
    Servable,
    Slot,
    SlotState,
    pool_of,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEEP = timedelta(seconds=60)
BASE_SHA = "b" * 64
OTHER_SHA = "c" * 64
POOL = pool_of(BASE_SHA)


def a_servable(number: int = 1, **changes: Any) -> Servable:
    """The n-th model version, an adapter on the base model."""
    digest = f"{number:064x}"[::-1]
    fields: dict[str, Any] = {
        "model_id": f"mv-{number}",
        "full_name": f"ft:tiny:acme:support:{digest[:8]}",
        "kind": "adapter",
        "digest": digest,
        "base_model": "tiny",
        "base_sha": BASE_SHA,
        "rank": 8,
    }
    return Servable(**fields | changes)


ONE, TWO = a_servable(1), a_servable(2)
FULL = a_servable(3, kind="full", rank=0)


def an_address(index: int = 0, incarnation: str = "first", replica_set: str = POOL) -> Address:
    return Address(f"{replica_set}-{index}", incarnation, f"http://127.0.0.1:{8000 + index}")


def a_slot(state: SlotState = SlotState.WITHDRAWN, **changes: Any) -> Slot:
    return Slot(tenant="acme", name="support", state=state, **changes)


def a_ready_slot(
    servable: Servable = ONE, *, generation: int = 1, addresses: Any = None, **changes: Any
) -> Slot:
    addresses = frozenset({an_address()} if addresses is None else addresses)
    fields: dict[str, Any] = {
        "generation": generation,
        "desired": servable,
        "route": Route(servable, generation, addresses),
        "served": frozenset({servable.digest}),
    }
    return a_slot(SlotState.READY, **fields | changes)


def a_pending_slot(
    servable: Servable = TWO, *, generation: int = 2, over: Slot | None = None, **changes: Any
) -> Slot:
    """Approved, while what `over` serves is still served."""
    over = over or a_slot()
    fields: dict[str, Any] = {
        "generation": generation,
        "desired": servable,
        "route": over.route,
        "served": over.served,
    }
    return a_slot(SlotState.PENDING, **fields | changes)


def approved(servable: Servable = ONE, generation: int = 1, slot: str = "support") -> DeploymentApproved:
    return DeploymentApproved(
        slot=slot,
        tenant="acme",
        generation=generation,
        model_id=servable.model_id,
        job_id=None,
        kind=servable.kind,
        digest=servable.digest,
        base_model=servable.base_model,
        base_sha=servable.base_sha,
        eval_id="eval-1",
        rank=servable.rank,
    )


def withdrawn(generation: int) -> DeploymentWithdrawn:
    return DeploymentWithdrawn(slot="support", tenant="acme", generation=generation, reason="asked for")


def stale(base_model: str = "tiny", sha: str = BASE_SHA) -> AdaptersStale:
    return AdaptersStale(base_model=base_model, stale_sha=sha, new_sha=OTHER_SHA)


def a_replica_set(*adapters: Servable, **changes: Any) -> ReplicaSet:
    fields: dict[str, Any] = {
        "base_names": ("tiny",),
        "adapters": {adapter.served_name: adapter for adapter in adapters},
        "num_replicas": 1,
    }
    return ReplicaSet(POOL, BASE_SHA, **fields | changes)


def a_replica(index: int = 0, phase: Phase = Phase.READY, **changes: Any) -> Replica:
    fields: dict[str, Any] = {
        "address": an_address(index),
        "started_at": NOON,
        "max_rank": 32,
        "served_base": "tiny",
        "announced": frozenset({"tiny"} if phase is Phase.READY else ()),
    }
    return Replica(f"{POOL}-{index}", POOL, BASE_SHA, phase, **fields | changes)
