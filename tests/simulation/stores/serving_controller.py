"""`services/serving_controller/store.py` in memory."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import count

from services.serving_controller.model import (
    Candidate,
    LoadTimes,
    Phase,
    Replica,
    ReplicaSetServables,
    Retired,
    Servable,
    Slot,
)
from services.serving_controller.store import View
from shared.errors import StaleWrite
from tests.simulation.fast import replace
from tests.simulation.tables import Tables

_versions = count(1)
"""A sequence: no number comes twice, and nobody waits for it."""


async def load_view(conn: Tables) -> View:
    return View(
        versions=dict(conn.items("wanted_replica_set")),
        replica_versions=dict(conn.items("replica_version")),
        retired=tuple(conn.rows("retired")),
        base_models=dict(conn.items("base_model")),
        candidates=tuple(conn.rows("candidate")),
        adapter_layers=dict(conn.items("adapter_layers")),
    )


async def save_base_model(
    conn: Tables, name: str, base_sha: str, *, adapter_layers: Sequence[str] | None = None
) -> None:
    conn.put("base_model", name, base_sha)
    if adapter_layers is not None:
        conn.put("adapter_layers", base_sha, tuple(adapter_layers))
    conn.delete("stale_base", (name, base_sha))


async def save_stale(conn: Tables, base_model: str, base_sha: str) -> None:
    conn.put("stale_base", (base_model, base_sha), True)


async def is_stale(conn: Tables, base_model: str, base_sha: str) -> bool:
    return bool(conn.get("stale_base", (base_model, base_sha)))


async def save_model_name(conn: Tables, model_id: str, full_name: str) -> None:
    if conn.get("model_name", model_id) is None:
        conn.put("model_name", model_id, full_name)


async def find_model_name(conn: Tables, model_id: str) -> str | None:
    return conn.get("model_name", model_id)  # type: ignore[no-any-return]


async def get_slot(conn: Tables, tenant: str, name: str) -> Slot:
    if conn.get("slot", (tenant, name)) is None:
        conn.put("slot", (tenant, name), Slot(tenant, name, revision=1))
    conn.lock_row("slot", (tenant, name))
    return conn.get("slot", (tenant, name))  # type: ignore[no-any-return]


def _servables(slot: Slot) -> list[Servable]:
    servables = [slot.desired, slot.route.servable if slot.route else None]
    return [servable for servable in servables if servable is not None]


async def servables_of_replica_set(conn: Tables, replica_set: str) -> ReplicaSetServables | None:
    entries = [
        (not each.is_pending, -(conn.get("slot_use", (slot.tenant, slot.name)) or 0.0), each)
        for slot in conn.rows("slot")
        for each in slot.desired_servables.values()
        if each.servable.replica_set == replica_set
    ]
    in_order = sorted(entries, key=lambda each: each[:2])
    return ReplicaSetServables.of([each for _, _, each in in_order]) if entries else None


async def slots_serving(conn: Tables, replica_set: str, served_names: Iterable[str]) -> list[Slot]:
    names = set(served_names)
    rows = [
        slot
        for slot in conn.rows("slot")
        if any(
            name in names and each.servable.replica_set == replica_set
            for name, each in slot.desired_servables.items()
        )
    ]
    return _locked(conn, rows)


async def slots_beyond(conn: Tables, replica_set: str, served_names: Iterable[str]) -> list[Slot]:
    names = set(served_names)
    slots = [
        slot
        for slot in conn.rows("slot")
        if slot.route is not None
        and slot.route.addresses
        and slot.route.servable.replica_set == replica_set
        and slot.route.servable.served_name not in names
    ]
    return _locked(conn, slots)


async def save_used(conn: Tables, slots: Sequence[tuple[str, str]], *, at: datetime) -> None:
    slot_by_key = {key: conn.get("slot", key) for key in sorted(set(slots))}
    used = {
        key: {each.servable.replica_set for each in slot.desired_servables.values()}
        for key, slot in slot_by_key.items()
        if slot
    }
    for replica_set in sorted(set().union(*used.values())):
        conn.lock_row("wanted_replica_set", replica_set)
        conn.put("wanted_replica_set", replica_set, next(_versions))
    for key in (each for each, replica_sets in used.items() if replica_sets):
        conn.put("slot_use", key, at.timestamp())


async def slots_on_base(
    conn: Tables, base_model: str, base_sha: str, *, after: tuple[str, str], at_most: int
) -> list[Slot]:
    on_base = (base_model, base_sha)
    slots = [
        slot
        for slot in conn.rows("slot")
        if (slot.tenant, slot.name) > after
        and any((each.base_model, each.base_sha) == on_base for each in _servables(slot))
    ]
    return _locked(conn, sorted(slots, key=lambda slot: (slot.tenant, slot.name))[:at_most])


async def stale_bases(conn: Tables) -> set[tuple[str, str]]:
    return {key for key, _ in conn.items("stale_base")}


def _locked(conn: Tables, slots: list[Slot]) -> list[Slot]:
    in_order = sorted(slots, key=lambda slot: (slot.tenant, slot.name))
    for slot in in_order:
        conn.lock_row("slot", (slot.tenant, slot.name))
    return in_order


async def save_slot(conn: Tables, slot: Slot) -> None:
    before: Slot = conn.get("slot", (slot.tenant, slot.name))
    if before.revision != slot.revision:
        raise StaleWrite(f"slot {slot.name} of {slot.tenant} changed")
    for _, entry in sorted(
        before.desired_servables.items() ^ slot.desired_servables.items(), key=lambda item: item[0]
    ):
        replica_set = entry.servable.replica_set
        conn.put("wanted_replica_set", replica_set, next(_versions))
    conn.put("slot", (slot.tenant, slot.name), replace(slot, revision=slot.revision + 1))
    wanted = {
        each.servable.replica_set for slot in conn.rows("slot") for each in slot.desired_servables.values()
    }
    for entry in before.desired_servables.values():
        if entry.servable.replica_set not in wanted:
            conn.delete("wanted_replica_set", entry.servable.replica_set)


async def save_retired(conn: Tables, retired: Retired) -> None:
    known = conn.get("retired", retired.servable.served_name)
    later = retired if known is None or retired.keep_until > known.keep_until else known
    conn.put("retired", retired.servable.served_name, later)


async def forget_retired(conn: Tables, *, now: datetime) -> None:
    for name, retired in list(conn.items("retired")):
        if retired.keep_until <= now:
            conn.delete("retired", name)


async def save_candidate(conn: Tables, candidate: Candidate) -> None:
    conn.put("candidate", candidate.eval_id, candidate)


async def find_candidate(conn: Tables, eval_id: str) -> Candidate | None:
    conn.lock_row("candidate", eval_id)
    return conn.get("candidate", eval_id)  # type: ignore[no-any-return]


async def forget_candidate(conn: Tables, eval_id: str) -> None:
    conn.delete("candidate", eval_id)


async def forget_candidates(conn: Tables, *, now: datetime) -> None:
    for eval_id, candidate in list(conn.items("candidate")):
        if candidate.until <= now:
            conn.delete("candidate", eval_id)


async def has_ready_replica(conn: Tables, replica_set: str) -> bool:
    return any(
        replica.replica_set == replica_set and replica.phase is Phase.READY
        for replica in conn.rows("replica")
    )


async def save_replica(conn: Tables, replica: Replica) -> None:
    conn.put("replica_version", replica.replica_id, next(_versions))
    conn.put("replica", replica.replica_id, replace(replica, is_alive=True, answers=True))


async def replicas(conn: Tables) -> tuple[Replica, ...]:
    return tuple(conn.rows("replica"))


async def save_load_times(conn: Tables, times: LoadTimes) -> None:
    conn.put("load_time", (times.served_name, times.replica_id), times)


async def list_load_times(conn: Tables, served_names: Iterable[str]) -> list[LoadTimes]:
    names = set(served_names)
    times = [each for each in conn.rows("load_time") if each.served_name in names]
    return sorted(times, key=lambda each: each.replica_id)


async def forget_replica(conn: Tables, replica_id: str) -> None:
    conn.delete("replica", replica_id)
    conn.delete("replica_version", replica_id)


async def lock_base_model(conn: Tables, base_model: str) -> None:
    conn.lock_name(f"base_model:{base_model}")
