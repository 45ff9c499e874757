"""SQL of the registry; the only file that knows its columns."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from services.registry.model import BaseModel, Generation, Slot, Version
from shared.errors import StaleWrite
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read

Shapes = Mapping[str, Sequence[int]]

KEPT_GENERATIONS = 100
"""How far back a slot's history is read; older rows stay for people."""

BASE_MODEL = Columns(
    "base_sha, manifest_sha256, source, template_sha256, context_tokens, num_parameters,"
    " training_template_sha256, capabilities"
)
LINEAGE = Columns(
    "model_id, tenant, job_id, digest, full_name, kind, rank, base_model, base_sha, dataset_version, config_hash,"
    " template_sha256, bundle_attempt=bundle.attempt, bundle_step=bundle.step,"
    " bundle_manifest_sha256=bundle.manifest_sha256, bundle_job_id=bundle.job_id, auto_deploy, started_from,"
    " best_valid_loss, artifact"
)
PROGRESS = Columns("stage, eval_id, archived_at, verdict, approval")

ADD_BASE_VERSION = f"""
    INSERT INTO base_version ({BASE_MODEL.names}, tensors, registered_at)
    VALUES ({BASE_MODEL.parameters()}, $9, $10)
    ON CONFLICT (base_sha) DO UPDATE SET capabilities = excluded.capabilities"""

POINT_BASE_MODEL = """
    INSERT INTO base_model (name, base_sha) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET base_sha = excluded.base_sha"""

FIND_BASE_MODEL = f"""
    SELECT m.name, {BASE_MODEL.selected}
      FROM base_model m JOIN base_version v USING (base_sha) WHERE m.name = $1"""

VERSIONS = f"SELECT {LINEAGE.selected}, {PROGRESS.selected}, revision FROM model_version"

ADD_VERSION = f"""
    INSERT INTO model_version ({LINEAGE.names}, {PROGRESS.names}, registered_at)
    VALUES ({LINEAGE.parameters()}, {PROGRESS.parameters(21)}, $26)
    ON CONFLICT (model_id) DO NOTHING"""

SAVE_VERSION = f"""
    UPDATE model_version SET ({PROGRESS.names}) = ROW({PROGRESS.parameters(3)}), revision = revision + 1
     WHERE model_id = $1 AND revision = $2 RETURNING revision"""

STOP_AUTO_DEPLOY = """
    UPDATE model_version SET auto_deploy = false, revision = revision + 1 WHERE job_id = $1 AND auto_deploy"""

# A model is named by its id or by its full name. Equal full names are one digest: the furthest is meant.
VERSION_BY_ANY_NAME = f"""
    {VERSIONS}
     WHERE tenant = $1 AND (model_id = $2 OR full_name = $2)
     ORDER BY (archived_at IS NULL) DESC, (stage <> 'dev') DESC, registered_at DESC LIMIT 1 FOR UPDATE"""

SERVABLE_VERSIONS = f"""
    {VERSIONS}
     WHERE model_id IN (SELECT g.model_id FROM slot_generation g WHERE g.tenant = $1 AND g.slot = $2)
       AND EXISTS (SELECT FROM base_model b
                    WHERE b.name = model_version.base_model AND b.base_sha = model_version.base_sha)
     ORDER BY model_id FOR SHARE OF model_version"""

ADD_SLOT = "INSERT INTO slot (tenant, name) VALUES ($1, $2) ON CONFLICT DO NOTHING"

SAVE_SLOT = """
    UPDATE slot SET desired = $3, revision = revision + 1
     WHERE tenant = $1 AND name = $2 AND revision = $4 RETURNING revision"""

# A slot knows some hundred generations, of which a decision changes one or two.
SAVE_GENERATIONS = """
    INSERT INTO slot_generation (tenant, slot, number, model_id, digest, outcome)
    SELECT $1, $2, known.number, known.model_id, known.digest, known.outcome
      FROM unnest($3::bigint[], $4::text[], $5::text[], $6::text[]) AS known (number, model_id, digest, outcome)
     WHERE NOT EXISTS (SELECT FROM slot_generation saved WHERE saved.tenant = $1 AND saved.slot = $2
                          AND saved.number = known.number AND saved.outcome = known.outcome)
    ON CONFLICT (tenant, slot, number) DO UPDATE SET outcome = excluded.outcome"""

SLOTS_ON_BASE = """
    SELECT tenant, name FROM slot
     WHERE desired = ANY(ARRAY(SELECT model_id FROM model_version WHERE base_model = $1 AND base_sha = $2))
     ORDER BY desired, tenant, name LIMIT $3 FOR UPDATE"""

SAVE_REFUSED = """
    INSERT INTO refused_artifact (job_id, tenant, task) VALUES ($1, $2, $3)
    ON CONFLICT (job_id) DO UPDATE SET task = excluded.task"""

GENERATIONS = """
    SELECT number, model_id, digest, outcome FROM slot_generation
     WHERE tenant = $1 AND slot = $2 ORDER BY number DESC LIMIT $3"""


async def save_refused_artifact(conn: Connection, job_id: str, tenant: str, task: Mapping[str, Any]) -> None:
    """Keep the task of a copy that failed, to be started again after a repair."""
    await conn.execute(SAVE_REFUSED, job_id, tenant, task)


async def find_refused_artifact(conn: Connection, job_id: str, tenant: str) -> Mapping[str, Any] | None:
    query = "SELECT task FROM refused_artifact WHERE job_id = $1 AND tenant = $2"
    task: Mapping[str, Any] | None = await conn.fetchval(query, job_id, tenant)
    return task


async def forget_refused_artifact(conn: Connection, job_id: str) -> None:
    await conn.execute("DELETE FROM refused_artifact WHERE job_id = $1", job_id)


async def stop_auto_deploy(conn: Connection, job_id: str) -> None:
    """Stop the automatic deployment of what the job has made so far."""
    await conn.execute(STOP_AUTO_DEPLOY, job_id)


async def find_base_model(conn: Connection, name: str) -> BaseModel | None:
    """Return what the name points to; it cannot be pointed elsewhere before the caller's transaction ends."""
    row = await conn.fetchrow(f"{FIND_BASE_MODEL} FOR SHARE OF m", name)
    return read(BaseModel, row) if row else None


async def find_base_model_for_update(conn: Connection, name: str) -> BaseModel | None:
    row = await conn.fetchrow(f"{FIND_BASE_MODEL} FOR UPDATE OF m", name)
    return read(BaseModel, row) if row else None


async def find_base_shapes(conn: Connection, base_sha: str) -> Shapes | None:
    """Return the shape of each tensor of a base model by name; None if these files were never registered."""
    tensors = await conn.fetchval("SELECT tensors FROM base_version WHERE base_sha = $1", base_sha)
    return dict(tensors) if tensors is not None else None


async def find_training_template(conn: Connection, base_sha: str) -> str | None:
    """Return sha256 of the template that marks the answers in training; None for a base model without one."""
    query = "SELECT training_template_sha256 FROM base_version WHERE base_sha = $1"
    sha256: str | None = await conn.fetchval(query, base_sha)
    return sha256


async def base_model_names(conn: Connection) -> list[str]:
    return [row["name"] for row in await conn.fetch("SELECT name FROM base_model ORDER BY name")]


async def save_base_model(conn: Connection, base: BaseModel, shapes: Shapes, *, now: datetime) -> None:
    tensors = {name: list(shape) for name, shape in shapes.items()}
    await conn.execute(ADD_BASE_VERSION, *BASE_MODEL.values(base), tensors, now)
    await conn.execute(POINT_BASE_MODEL, base.name, base.base_sha)


async def add_version(conn: Connection, version: Version, *, now: datetime) -> bool:
    """Add the version; return False if it is known already."""
    status: str = await conn.execute(ADD_VERSION, *LINEAGE.values(version), *PROGRESS.values(version), now)
    return status == "INSERT 0 1"


async def save_version(conn: Connection, version: Version) -> None:
    """Write what may change. Raises StaleWrite if someone wrote it since it was read."""
    if (
        await conn.fetchval(SAVE_VERSION, version.model_id, version.revision, *PROGRESS.values(version))
        is None
    ):
        raise StaleWrite(f"model version {version.model_id} changed since revision {version.revision}")


async def find_version(conn: Connection, model_id: str) -> Version | None:
    row = await conn.fetchrow(f"{VERSIONS} WHERE model_id = $1 FOR UPDATE", model_id)
    return read(Version, row) if row else None


async def find_version_of(conn: Connection, tenant: str, name: str) -> Version | None:
    """Return the tenant's version of that id or full name."""
    row = await conn.fetchrow(VERSION_BY_ANY_NAME, tenant, name)
    return read(Version, row) if row else None


async def servable_versions(conn: Connection, tenant: str, slot: str) -> dict[str, Version]:
    """Return, of the versions that the slot has served, those that may be served now.

    They stay so until the caller's transaction ends. Call it before the slot is locked: a verdict and an archival
    lock the version first and its slots afterwards.
    """
    rows = await conn.fetch(SERVABLE_VERSIONS, tenant, slot)
    versions = [read(Version, row) for row in rows]
    return {version.model_id: version for version in versions if version.may_be_served}


async def versions_of_dataset(conn: Connection, dataset_version: str) -> list[Version]:
    """Return what was trained on this dataset version, archived or not: the way down the lineage."""
    rows = await conn.fetch(f"{VERSIONS} WHERE dataset_version = $1 ORDER BY model_id", dataset_version)
    return [read(Version, row) for row in rows]


async def versions_of_job(conn: Connection, job_id: str) -> list[Version]:
    rows = await conn.fetch(f"{VERSIONS} WHERE job_id = $1 ORDER BY model_id", job_id)
    return [read(Version, row) for row in rows]


async def get_slot(conn: Connection, tenant: str, name: str) -> Slot:
    """Return the slot, locked; a new one where it was never used."""
    await conn.execute(ADD_SLOT, tenant, name)
    slot = await find_slot(conn, tenant, name)
    assert slot is not None, f"slot {name} of {tenant} vanished within a transaction"
    return slot


async def find_slot(conn: Connection, tenant: str, name: str) -> Slot | None:
    revision = await conn.fetchval(
        "SELECT revision FROM slot WHERE tenant = $1 AND name = $2 FOR UPDATE", tenant, name
    )
    if revision is None:
        return None
    rows = await conn.fetch(GENERATIONS, tenant, name, KEPT_GENERATIONS)
    return Slot(tenant, name, tuple(read(Generation, row) for row in reversed(rows)), revision)


async def slots_serving(conn: Connection, model_ids: Sequence[str]) -> list[Slot]:
    """Return the slots that are meant to serve one of these versions, locked."""
    rows = await conn.fetch(
        "SELECT tenant, name FROM slot WHERE desired = ANY($1) ORDER BY tenant, name FOR UPDATE",
        list(model_ids),
    )
    return await _slots(conn, rows)


async def slots_on_base(conn: Connection, base_model: str, base_sha: str, *, at_most: int) -> list[Slot]:
    """Return some of the slots that are meant to serve what was trained on these files, locked."""
    return await _slots(conn, await conn.fetch(SLOTS_ON_BASE, base_model, base_sha, at_most))


async def _slots(conn: Connection, rows: Sequence[Any]) -> list[Slot]:
    slots = [await find_slot(conn, row["tenant"], row["name"]) for row in rows]
    return [slot for slot in slots if slot is not None]


async def save_slot(conn: Connection, slot: Slot) -> None:
    """Write the slot and its generations. Raises StaleWrite if someone wrote it since it was read."""
    desired = slot.desired.model_id if slot.desired else None
    if await conn.fetchval(SAVE_SLOT, slot.tenant, slot.name, desired, slot.revision) is None:
        raise StaleWrite(f"slot {slot.name} of {slot.tenant} changed since revision {slot.revision}")
    await conn.execute(
        SAVE_GENERATIONS,
        slot.tenant,
        slot.name,
        [known.number for known in slot.generations],
        [known.model_id for known in slot.generations],
        [known.digest for known in slot.generations],
        [known.outcome for known in slot.generations],
    )
