"""What keeps a submitted job from its end: looked up at both doors, and shown in the job and its timeline."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from schemas.job import JobScheduled, JobSubmitted, SubmitJob
from schemas.node import PoolCapacityChanged
from schemas.placement import takes
from schemas.specification import DatasetPolicy, JobSpec
from services.gateway import memory, readmodels, store, tables
from services.gateway.model import Job, JobMemory, JobWarning, SubmittedSpec
from services.gateway.obstacles import Known, Obstacle, obstacles, suited_pools
from services.gateway.projections import envelope_of
from shared.messaging.unit import Unit
from shared.postgres.database import Connection


async def obstacles_to(conn: Connection, submit: SubmitJob | JobSubmitted) -> tuple[Obstacle, ...]:
    """Return what keeps the job from its end. Memory is looked at where the datasets were asked for before."""
    dataset_ids = (submit.dataset_id, *submit.later_dataset_ids)
    policies = [await readmodels.find_policy_of_dataset(conn, each, submit.tenant) for each in dataset_ids]
    return await obstacles_with(conn, submit, policies)


async def obstacles_with(
    conn: Connection, submit: SubmitJob | JobSubmitted, policies: Sequence[DatasetPolicy | None]
) -> tuple[Obstacle, ...]:
    """policies: of each stage's dataset; None where it is not known."""
    known = await _known(conn, submit.spec, submit.tenant)
    if known.base is not None:
        known = replace(known, windows=tuple(_window_tokens(known.base, policy) for policy in policies))
    return obstacles(submit.spec, known)


async def estimated_memory(
    conn: Connection, spec: JobSpec, tenant: str, policy: DatasetPolicy | None
) -> JobMemory | None:
    """Estimate the job's memory; None where the base model's shape or the dataset's policy is not known."""
    base = await _base(conn, spec)
    if base is None or (window := _window_tokens(base, policy)) is None:
        return None
    pools = suited_pools(spec.resources, await _pools(conn, tenant))
    return memory.chosen_by(pools, spec, base, max_seq_length=window)


def _window_tokens(base: memory.Base, policy: DatasetPolicy | None) -> int | None:
    if policy is None:
        return None
    return base.max_seq_length if policy.max_seq_length == "auto" else policy.max_seq_length


async def _pools(conn: Connection, tenant: str) -> tuple[PoolCapacityChanged, ...]:
    return tuple(pool for pool in await readmodels.list_pools(conn) if takes(pool, tenant))


async def _base(conn: Connection, spec: JobSpec) -> memory.Base | None:
    return memory.Base.of(await readmodels.find_base_detail(conn, spec.base_model, spec.base_sha))


async def warn(unit: Unit, event: JobSubmitted) -> None:
    """Show what may keep the job from its end, by whichever door it came; operators' commands pass none of ours."""
    warnings = as_warnings(await obstacles_to(unit.conn, event))
    shown: dict[str, object] = {"warnings": warnings}
    policy = await readmodels.find_policy_of_dataset(unit.conn, event.dataset_id, event.tenant)
    if estimated := await estimated_memory(unit.conn, event.spec, event.tenant, policy):
        shown["estimated_memory"] = estimated
    await tables.update_job(unit.conn, event.job_id, event.tenant, **shown)
    await tables.add_warnings(unit, event.job_id, event.tenant, envelope_of(unit).id, warnings)


async def note_pool(unit: Unit, event: JobScheduled) -> None:
    """Estimate the memory again: where the job trains, and its batch, are known by now."""
    job = await readmodels.find_job(unit.conn, event.job_id, event.tenant)
    if job is None or job.dataset_id is None:
        return
    stages = job.stages or ()
    dataset_id = stages[event.stage.number - 1].dataset_id if event.stage and stages else job.dataset_id
    resources = event.spec.resources.model_copy(update={"pool": event.pool})
    in_pool = event.spec.model_copy(update={"resources": resources})
    policy = await readmodels.find_policy_of_dataset(unit.conn, dataset_id, event.tenant)
    estimated = await estimated_memory(unit.conn, in_pool, event.tenant, policy)
    if estimated is not None:
        await tables.update_job(unit.conn, event.job_id, event.tenant, estimated_memory=estimated)


def as_warnings(obstacles: Iterable[Obstacle]) -> tuple[JobWarning, ...]:
    return tuple(JobWarning(code=each.code, message=each.message, param=each.param) for each in obstacles)


async def why_stale(source: store.Source, spec: SubmittedSpec) -> str:
    """Why a job like one with this spec would train for nothing; empty where its base model is as it was."""
    base = await store.find_base(source, spec.base_model) if spec.base_model else None
    if base is None or base.base_sha == spec.base_sha:
        return ""
    return (
        f"base model {spec.base_model!r} has other files now than the job was submitted with: submit it again"
    )


async def deleted_file_of(conn: Connection, original: Job) -> str:
    """Why the job cannot be run again; "" where all its files are there, which stay until the commit."""
    spec = original.spec
    files = [("holdout", spec.holdout)]
    for each in original.stages or (spec,):
        files += [("training_file", each.training_file), ("validation_file", each.validation_file)]
    for name, file in files:
        if file and await store.is_deleted(conn, file.file_id):
            gone = f"{name} of job {original.job_id!r}, file {file.file_id!r}, was deleted"
            return f"{gone}: upload it again and submit a new job"
    return ""


async def _known(conn: Connection, spec: JobSpec, tenant: str) -> Known:
    holdout = spec.holdout and await store.find_file(conn, spec.holdout.file_id, tenant)
    return Known(
        policy=await readmodels.find_gate_policy(conn),
        checks=frozenset(suite.check for suite in await readmodels.list_suites(conn)),
        pools=await _pools(conn, tenant),
        holdout_rows=holdout.num_rows if holdout else None,
        base=await _base(conn, spec),
    )
