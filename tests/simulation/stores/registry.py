"""`services/registry/store.py` in memory."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from services.registry.model import BaseModel, Slot, Version
from shared.errors import StaleWrite
from tests.simulation.fast import replace
from tests.simulation.tables import Tables


async def save_refused_artifact(conn: Tables, job_id: str, tenant: str, task: Mapping[str, Any]) -> None:
    conn.put("refused_artifact", job_id, (tenant, task))


async def find_refused_artifact(conn: Tables, job_id: str, tenant: str) -> Mapping[str, Any] | None:
    owner, task = conn.get("refused_artifact", job_id) or ("", None)
    return task if owner == tenant else None


async def forget_refused_artifact(conn: Tables, job_id: str) -> None:
    conn.put("refused_artifact", job_id, None)


async def find_base_model(conn: Tables, name: str) -> BaseModel | None:
    conn.lock_row("base_model", name, is_shared=True)
    return conn.get("base_model", name)  # type: ignore[no-any-return]


async def find_base_model_for_update(conn: Tables, name: str) -> BaseModel | None:
    conn.lock_row("base_model", name)
    return conn.get("base_model", name)  # type: ignore[no-any-return]


async def find_base_shapes(conn: Tables, base_sha: str) -> Mapping[str, Sequence[int]] | None:
    return conn.get("shapes", base_sha)  # type: ignore[no-any-return]


async def find_training_template(conn: Tables, base_sha: str) -> str | None:
    bases = (base for base in conn.rows("base_model") if base.base_sha == base_sha)
    return next((base.training_template_sha256 for base in bases), None)


async def base_model_names(conn: Tables) -> list[str]:
    return sorted(base.name for base in conn.rows("base_model"))


async def save_base_model(conn: Tables, base: BaseModel, shapes: Any, *, now: datetime) -> None:
    conn.put("shapes", base.base_sha, shapes)
    conn.put("base_model", base.name, base)


async def add_version(conn: Tables, version: Version, *, now: datetime) -> bool:
    if conn.get("version", version.model_id) is not None:
        return False
    conn.put("version", version.model_id, replace(version, revision=1))
    return True


async def save_version(conn: Tables, version: Version) -> None:
    if conn.get("version", version.model_id).revision != version.revision:
        raise StaleWrite(f"model version {version.model_id} changed")
    conn.put("version", version.model_id, replace(version, revision=version.revision + 1))


async def find_version(conn: Tables, model_id: str) -> Version | None:
    conn.lock_row("version", model_id)
    return conn.get("version", model_id)  # type: ignore[no-any-return]


async def versions_of_job(conn: Tables, job_id: str) -> list[Version]:
    return [version for version in conn.rows("version") if version.job_id == job_id]


async def find_version_of(conn: Tables, tenant: str, name: str) -> Version | None:
    candidates = [
        (version.archived_at is None, version.is_gated, number, version)
        for number, version in enumerate(conn.rows("version"))
        if version.tenant == tenant and name in (version.model_id, version.full_name)
    ]
    return (
        await find_version(conn, max(candidates, key=lambda each: each[:3])[3].model_id)
        if candidates
        else None
    )


async def servable_versions(conn: Tables, tenant: str, slot: str) -> dict[str, Version]:
    versions = {}
    known: Slot | None = conn.get("slot", (tenant, slot))
    for model_id in {each.model_id for each in known.generations} if known else ():
        version: Version | None = conn.get("version", model_id)
        if version is None or not version.may_be_served:
            continue
        base = conn.get("base_model", version.base_model)
        if base is not None and base.base_sha == version.base_sha:
            conn.lock_row("version", model_id, is_shared=True)
            versions[version.model_id] = version
    return versions


async def get_slot(conn: Tables, tenant: str, name: str) -> Slot:
    if conn.get("slot", (tenant, name)) is None:
        conn.put("slot", (tenant, name), Slot(tenant, name, revision=1))
    conn.lock_row("slot", (tenant, name))
    return conn.get("slot", (tenant, name))  # type: ignore[no-any-return]


async def find_slot(conn: Tables, tenant: str, name: str) -> Slot | None:
    conn.lock_row("slot", (tenant, name))
    return conn.get("slot", (tenant, name))  # type: ignore[no-any-return]


async def slots_serving(conn: Tables, model_ids: Sequence[str]) -> list[Slot]:
    slots = [slot for slot in conn.rows("slot") if slot.desired and slot.desired.model_id in model_ids]
    in_order = sorted(slots, key=lambda slot: (slot.tenant, slot.name))
    for slot in in_order:
        conn.lock_row("slot", (slot.tenant, slot.name))
    return in_order


async def slots_on_base(conn: Tables, base_model: str, base_sha: str, *, at_most: int) -> list[Slot]:
    on_base = [
        version.model_id
        for version in conn.rows("version")
        if (version.base_model, version.base_sha) == (base_model, base_sha)
    ]
    return (await slots_serving(conn, on_base))[:at_most]


async def save_slot(conn: Tables, slot: Slot) -> None:
    if conn.get("slot", (slot.tenant, slot.name)).revision != slot.revision:
        raise StaleWrite(f"slot {slot.name} of {slot.tenant} changed")
    conn.put("slot", (slot.tenant, slot.name), replace(slot, revision=slot.revision + 1))


async def stop_auto_deploy(conn: Tables, job_id: str) -> None:
    for version in conn.rows("version"):
        if version.job_id == job_id and version.auto_deploy:
            conn.put(
                "version",
                version.model_id,
                replace(version, auto_deploy=False, revision=version.revision + 1),
            )
