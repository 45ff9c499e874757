"""What keeps a submitted job from its end: looked up at both doors, and told in the job and its timeline."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from schemas.job import JobSubmitted
from schemas.node import PoolCapacityChanged
from schemas.specification import AVAILABLE_METHODS, DatasetPolicy, JobSpec
from services.gateway import memory, readmodels, store
from services.gateway.decide import stage_of_suite
from services.gateway.obstacles import Known, Obstacle, Policy, obstacles
from shared.messaging.unit import Unit
from shared.postgres.database import Connection, Database


async def obstacles_to(conn: Connection, spec: JobSpec, tenant: str, dataset_id: str) -> tuple[Obstacle, ...]:
    """Memory is looked at where the dataset was asked for before."""
    known = await _known(conn, spec, tenant)
    if known.base is not None:
        known = replace(known, max_seq_length=await _window_tokens(conn, known.base, tenant, dataset_id))
    return obstacles(spec, known)


async def estimated_memory(
    conn: Connection, spec: JobSpec, tenant: str, dataset_id: str
) -> dict[str, Any] | None:
    """Of each device, on a GPU; None where the base model's shape or the dataset's window is not known."""
    base = await _base(conn, spec)
    if base is None or spec.recipe.method not in AVAILABLE_METHODS:
        return None
    window = await _window_tokens(conn, base, tenant, dataset_id)
    if window is None:
        return None
    needed = memory.of_job(spec, base, max_seq_length=window, is_gpu=True)
    return {"max_seq_length": window} | needed.model_dump(mode="json")


async def _window_tokens(conn: Connection, base: memory.Base, tenant: str, dataset_id: str) -> int | None:
    asked = await conn.fetchval(readmodels.POLICY_OF_DATASET, dataset_id, tenant)
    if asked is None:
        return None
    policy = DatasetPolicy.model_validate(asked)
    return base.max_seq_length if policy.max_seq_length == "auto" else policy.max_seq_length


async def _base(conn: Connection, spec: JobSpec) -> memory.Base | None:
    return memory.Base.of(await conn.fetchval(readmodels.FIND_BASE_DETAIL, spec.base_model, spec.base_sha))


async def warn(unit: Unit, event: JobSubmitted) -> None:
    """Of all jobs, whichever door they came by; operators' commands pass none of ours."""
    asked = event.spec, event.tenant, event.dataset_id
    warnings = as_warnings(await obstacles_to(unit.conn, *asked))
    shown: dict[str, Any] = {"warnings": warnings}
    if estimated := await estimated_memory(unit.conn, *asked):
        shown["estimated_memory"] = estimated
    await readmodels.update_job(unit.conn, event.job_id, event.tenant, **shown)
    assert unit.envelope is not None, "events come with an envelope"
    of_job = event.job_id, event.tenant, unit.envelope.id
    await readmodels.add_warnings(unit.conn, *of_job, warnings, unit.now)


def as_warnings(obstacles: Iterable[Obstacle]) -> list[dict[str, str]]:
    return [{"code": each.code, "message": each.message, "param": each.param} for each in obstacles]


async def why_stale(conn: Connection | Database, spec: Mapping[str, Any]) -> str:
    """Why a job like one with this spec would train for nothing; empty where its base model is as it was."""
    name = spec.get("base_model")
    base = await store.find_base(conn, name) if name else None
    if base is None or base.base_sha == spec.get("base_sha"):
        return ""
    return f"base model {name!r} has other files now than the job was submitted with: submit it again"


async def deleted_file_of(conn: Connection, job_row: Any) -> str:
    """Why the job cannot be run again; "" where all its files are there, which stay until the commit."""
    for name in ("training_file", "validation_file", "holdout"):
        file = job_row["spec"].get(name)
        if file and await store.is_deleted(conn, file["file_id"]):
            gone = f"{name} of job {job_row['job_id']!r}, file {file['file_id']!r}, was deleted"
            return f"{gone}: upload it again and submit a new job"
    return ""


async def _known(conn: Connection, spec: JobSpec, tenant: str) -> Known:
    policy = await conn.fetchval(readmodels.FIND_POLICY)
    suites = await conn.fetch(readmodels.LIST_SUITES)
    pools = await conn.fetch(readmodels.LIST_POOLS)
    holdout = spec.holdout and await store.find_file_row(conn, spec.holdout.file_id, tenant)
    return Known(
        policy=policy and Policy(frozenset(policy["required_stages"]), frozenset(policy["judge_urls"])),
        stages=frozenset(stage_of_suite(row["is_benchmark"], row["detail"]) for row in suites),
        pools=tuple(PoolCapacityChanged.model_validate(row["detail"]) for row in pools),
        holdout_rows=holdout["num_rows"] if holdout else None,
        base=await _base(conn, spec),
    )
