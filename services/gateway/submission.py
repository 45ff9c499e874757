"""What keeps a submitted job from its end: looked up at both doors, and shown in the job and its timeline."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from schemas.elastic import at_least_nodes
from schemas.job import JobScheduled, JobSubmitted, SubmitJob
from schemas.node import PoolCapacityChanged
from schemas.placement import takes
from schemas.specification import MAX_DEVICE_GIB, MIN_DEVICE_GIB, DatasetPolicy, JobSpec
from services.gateway import attempt_times, memory, readmodels, store, tables
from services.gateway.model import Dataset, Job, JobMemory, JobWarning, SubmittedSpec
from services.gateway.obstacles import Known, Obstacle, obstacles, suited_pools
from services.gateway.projections import envelope_of
from services.gateway.training_time import EstimatedTime
from shared.messaging.unit import Unit
from shared.postgres.database import Connection


async def obstacles_to(conn: Connection, submit: SubmitJob | JobSubmitted) -> tuple[Obstacle, ...]:
    """Return what keeps the job from its end. Memory is looked at where the datasets were asked for before."""
    return obstacles(submit.spec, await known_of(conn, submit))


async def known_of(conn: Connection, submit: SubmitJob | JobSubmitted) -> Known:
    """Return what is known of the job's pools, base and gate, and of datasets that were asked for before."""
    dataset_ids = (submit.dataset_id, *submit.later_dataset_ids)
    policies = [await readmodels.find_policy_of_dataset(conn, each, submit.tenant) for each in dataset_ids]
    return await known_with(conn, submit, policies)


async def known_with(
    conn: Connection, submit: SubmitJob | JobSubmitted, policies: Sequence[DatasetPolicy | None]
) -> Known:
    """policies: of each stage's dataset; None where it is not known."""
    known = await _known(conn, submit.spec, submit.tenant)
    if known.base is not None:
        known = replace(known, windows=tuple(_window_tokens(known.base, policy) for policy in policies))
    return known


def with_least_memory(submit: SubmitJob, known: Known) -> SubmitJob:
    """Return the command with the memory that the job needs of each GPU, where it names none and all is known that it
    follows from: the scheduler leaves out pools with less, though they be cheaper.
    """
    spec, windows = submit.spec, [window for window in known.windows if window is not None]
    if spec.resources.device_memory_gib is not None or known.base is None:
        return submit
    if len(windows) < len(spec.by_stage) or not any(
        map(memory.is_gpu, suited_pools(spec.resources, known.pools))
    ):
        return submit
    least = min(
        MAX_DEVICE_GIB, max(MIN_DEVICE_GIB, memory.least_gib(at_least_nodes(spec), known.base, windows))
    )
    resources = spec.resources.model_copy(update={"device_memory_gib": least})
    return submit.model_copy(update={"spec": spec.model_copy(update={"resources": resources})})


@dataclass(frozen=True)
class Estimates:
    """What a job needs, as far as it is known before it trains."""

    estimated_memory: JobMemory | None
    """None where the base model's shape or the policy of the first dataset is not known."""
    estimated_times: tuple[EstimatedTime, ...]

    @property
    def known(self) -> dict[str, object]:
        """Columns of a job, without those of which nothing is known."""
        return {name: value for name, value in vars(self).items() if value}


async def estimates_of(
    conn: Connection,
    spec: JobSpec,
    tenant: str,
    *,
    policy: DatasetPolicy | None,
    datasets: Sequence[Dataset | None],
) -> Estimates:
    """policy: of the first stage's dataset. datasets: of each stage, or another one of the same files; None where
    there is none yet."""
    base = await _base(conn, spec)
    if base is None:
        return Estimates(None, ())
    pools = suited_pools(spec.resources, await _pools(conn, tenant))
    window = _window_tokens(base, policy)
    chosen = None if window is None else memory.chosen_by(pools, spec, base, max_seq_length=window)
    counts = [None if each is None else each.detail.counts for each in datasets]
    times = await attempt_times.estimated(conn, spec, tenant, base=base, counts=counts, pools=pools)
    return Estimates(chosen, times)


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
    job = await readmodels.find_job(unit.conn, event.job_id, event.tenant)
    if job is None or not job.estimated_times:
        dataset_ids = (event.dataset_id, *event.later_dataset_ids)
        shown |= (await _estimates_on(unit, event.spec, event.tenant, dataset_ids)).known
    await tables.update_job(unit.conn, event.job_id, event.tenant, **shown)
    await tables.add_warnings(unit, event.job_id, event.tenant, envelope_of(unit).id, warnings)


async def note_pool(unit: Unit, event: JobScheduled) -> None:
    """Estimate again: where the job trains, its batch and its dataset are known by now. The time stays as it was for
    a job of several stages, of which the event has one, and for later attempts, which continue."""
    job = await readmodels.find_job(unit.conn, event.job_id, event.tenant)
    if job is None or job.dataset_id is None:
        return
    stages = job.stages or ()
    dataset_id = stages[event.stage.number - 1].dataset_id if event.stage and stages else job.dataset_id
    resources = event.spec.resources.model_copy(update={"pool": event.pool})
    in_pool = event.spec.model_copy(update={"resources": resources})
    estimates = await _estimates_on(unit, in_pool, event.tenant, (dataset_id,))
    shown = estimates.known
    if event.stage is None and event.attempt == 1:
        shown["estimated_times"] = estimates.estimated_times
    else:
        shown.pop("estimated_times", None)
    if shown:
        await tables.update_job(unit.conn, event.job_id, event.tenant, **shown)


async def _estimates_on(unit: Unit, spec: JobSpec, tenant: str, dataset_ids: Sequence[str]) -> Estimates:
    policy = await readmodels.find_policy_of_dataset(unit.conn, dataset_ids[0], tenant)
    datasets = [await readmodels.find_dataset(unit.conn, each, tenant) for each in dataset_ids]
    return await estimates_of(unit.conn, spec, tenant, policy=policy, datasets=datasets)


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
