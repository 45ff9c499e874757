"""`services/serving_controller/store.py` in memory."""

from datetime import datetime

from services.serving_controller.model import Candidate, Phase, Replica, Retired, Servable, Slot
from services.serving_controller.store import View
from shared.errors import StaleWrite
from tests.simulation.fast import replace
from tests.simulation.tables import Tables


async def load_view(conn: Tables) -> View:
    return View(
        slots=tuple(conn.rows("slot")),
        retired=tuple(conn.rows("retired")),
        base_models=dict(conn.items("base_model")),
        replicas=tuple(conn.rows("replica")),
        candidates=tuple(conn.rows("candidate")),
    )


async def save_base_model(conn: Tables, name: str, base_sha: str) -> None:
    conn.put("base_model", name, base_sha)
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
        conn.put("slot", (tenant, name), Slot(tenant, name))
    return conn.get("slot", (tenant, name))  # type: ignore[no-any-return]


def _servables(slot: Slot) -> list[Servable]:
    found = [slot.desired, slot.route.servable if slot.route else None]
    return [servable for servable in found if servable is not None]


async def slots_of_group(conn: Tables, group: str) -> list[Slot]:
    found = [slot for slot in conn.rows("slot") if any(each.group == group for each in _servables(slot))]
    return sorted(found, key=lambda slot: (slot.tenant, slot.name))


async def slots_on_base(conn: Tables, base_model: str, base_sha: str) -> list[Slot]:
    on_base = (base_model, base_sha)
    found = [
        slot
        for slot in conn.rows("slot")
        if any((each.base_model, each.base_sha) == on_base for each in _servables(slot))
    ]
    return sorted(found, key=lambda slot: (slot.tenant, slot.name))


async def save_slot(conn: Tables, slot: Slot) -> None:
    if conn.get("slot", (slot.tenant, slot.name)).revision != slot.revision:
        raise StaleWrite(f"slot {slot.name} of {slot.tenant} changed")
    conn.put("slot", (slot.tenant, slot.name), replace(slot, revision=slot.revision + 1))


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
    return conn.get("candidate", eval_id)  # type: ignore[no-any-return]


async def forget_candidate(conn: Tables, eval_id: str) -> None:
    conn.delete("candidate", eval_id)


async def forget_candidates(conn: Tables, *, now: datetime) -> None:
    for eval_id, candidate in list(conn.items("candidate")):
        if candidate.until <= now:
            conn.delete("candidate", eval_id)


async def has_ready_replica(conn: Tables, group: str) -> bool:
    return any(found.group == group and found.phase is Phase.READY for found in conn.rows("replica"))


async def save_replica(conn: Tables, replica: Replica) -> None:
    conn.put("replica", replica.replica_id, replace(replica, is_alive=True, answers=True))


async def forget_replica(conn: Tables, replica_id: str) -> None:
    conn.delete("replica", replica_id)
