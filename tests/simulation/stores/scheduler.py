"""`services/scheduler/store.py` and `queue_store.py` in memory."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice

from schemas.envelope import Envelope
from schemas.job import StopReason
from schemas.lifecycle import TERMINAL, JobState
from services.scheduler.decide.candidate import Candidate
from services.scheduler.decide.growth import ElasticAttempt
from services.scheduler.decide.ledger import Booking, DeviceType, Ledger, Pool
from services.scheduler.decide.overdue import WITH_DEADLINES, OpenJob
from services.scheduler.model import Base, Dataset, Deployment, Job
from services.scheduler.store import FreedNodes
from shared.errors import StaleWrite
from tests.simulation.fast import replace
from tests.simulation.tables import Tables

UNSCHEDULED = {JobState.VALIDATING, JobState.QUEUED, JobState.PAUSED}


async def find_job(conn: Tables, job_id: str) -> Job | None:
    job: Job | None = conn.get("job", job_id)
    if job is None:
        return None
    conn.lock_row("job", job_id)
    dataset = conn.get("dataset", job.dataset_id)
    if job.dataset is not dataset:
        job = replace(job, dataset=dataset)
    if not job.later_dataset_ids:
        return job
    return replace(job, later_datasets=tuple(conn.get("dataset", each) for each in job.later_dataset_ids))


async def find_jobs(conn: Tables, job_ids: Sequence[str]) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for job_id in sorted(job_ids):
        if (job := await find_job(conn, job_id)) is not None:
            jobs[job_id] = job
    return jobs


async def find_queued_jobs(conn: Tables, job_ids: Sequence[str]) -> dict[str, Job]:
    free = [each for each in job_ids if not conn.is_locked("job", each)]
    jobs = await find_jobs(conn, free)
    return {name: job for name, job in jobs.items() if job.state is JobState.QUEUED}


async def find_running_job(conn: Tables, job_id: str) -> Job | None:
    if conn.is_locked("job", job_id):
        return None
    job = await find_job(conn, job_id)
    return job if job and job.state is JobState.RUNNING else None


async def add_job(conn: Tables, job: Job) -> None:
    conn.put("job", job.id, job)
    if job.state is JobState.QUEUED:
        conn.put("queued", job.id, job.id)


async def save_jobs(conn: Tables, jobs: Sequence[Job], *, planned_before: Collection[str] = ()) -> list[Job]:
    return [_save_job(conn, job, keeps_plans=job.id in planned_before) for job in jobs]


def _save_job(conn: Tables, job: Job, *, keeps_plans: bool) -> Job:
    known: Job = conn.get("job", job.id)
    if known.revision != job.revision:
        raise StaleWrite(f"job {job.id} changed since revision {job.revision}")
    if keeps_plans:
        job = replace(job, plan=known.plan, stage_plans=known.stage_plans)
    saved = replace(job, revision=job.revision + 1)
    conn.put("job", job.id, saved)
    if job.state is JobState.QUEUED:
        conn.put("queued", job.id, job.id)
    elif conn.get("queued", job.id):
        conn.delete("queued", job.id)
    return saved


async def save_attempts(conn: Tables, jobs: Sequence[Job]) -> None:
    for job in jobs:
        run = job.present
        if conn.get("attempt", (job.id, run.number)) is None:
            conn.put("attempt", (job.id, run.number), True)
            booking = Booking(
                run.placement.machines, run.placement.taken_per_node, run.scheduled_at, run.ends_by
            )
            conn.put("booking", (job.id, run.number), (run.placement.pool, booking, job.tenant))


async def open_jobs(conn: Tables) -> list[OpenJob]:
    return [
        OpenJob(job.state, job.present, job.evaluation.gated_at)
        for job in conn.rows("job")
        if job.state in WITH_DEADLINES
    ]


async def free_nodes(conn: Tables, attempts: Sequence[FreedNodes]) -> None:
    for job_id, attempt, at in attempts:
        if (booked := conn.get("booking", (job_id, attempt))) is not None:
            conn.put("run_time", (job_id, attempt), (at, at - booked[1].since))
            conn.delete("booking", (job_id, attempt))


async def find_dataset(conn: Tables, dataset_id: str) -> Dataset | None:
    return conn.get("dataset", dataset_id)  # type: ignore[no-any-return]


async def save_dataset(conn: Tables, dataset: Dataset) -> None:
    conn.put("dataset", dataset.dataset_id, dataset)


async def jobs_on_dataset(conn: Tables, dataset_id: str, *, after: str, at_most: int) -> list[Job]:
    jobs = [
        job
        for job in conn.rows("job")
        if dataset_id in (job.dataset_id, *job.later_dataset_ids) and job.state in UNSCHEDULED
    ]
    return await _batch(conn, jobs, after=after, at_most=at_most)


async def save_base_model(conn: Tables, name: str, base: Base) -> None:
    conn.put("base_model", name, base)


async def find_base(conn: Tables, name: str) -> Base | None:
    conn.lock_row("base_model", name, is_shared=True)
    return conn.get("base_model", name)  # type: ignore[no-any-return]


async def find_other_base(conn: Tables, name: str, base_sha: str) -> Base | None:
    base = conn.get("base_model", name)
    return base if base is not None and base.sha != base_sha else None


async def jobs_on_base(
    conn: Tables, base_model: str, base_sha: str, *, after: str, at_most: int
) -> list[Job]:
    return await _batch(conn, _open_on_base(conn, base_model, base_sha), after=after, at_most=at_most)


async def jobs_stale_on_base(
    conn: Tables, base_model: str, base_sha: str, *, after: str, at_most: int
) -> list[Job]:
    jobs = _open_on_base(conn, base_model, base_sha)
    stale = [job for job in jobs if job.evaluation.denial and job.evaluation.denial.stale_base]
    return await _batch(conn, stale, after=after, at_most=at_most)


def _open_on_base(conn: Tables, base_model: str, base_sha: str) -> list[Job]:
    return [
        job
        for job in conn.rows("job")
        if (job.spec.base_model, job.spec.base_sha) == (base_model, base_sha) and job.state not in TERMINAL
    ]


async def _batch(conn: Tables, jobs: Iterable[Job], *, after: str, at_most: int) -> list[Job]:
    behind = sorted((job for job in jobs if job.id > after), key=_by_id)
    return [*(await find_jobs(conn, [job.id for job in behind[:at_most]])).values()]


async def jobs_waiting_for(conn: Tables, deployment: Deployment) -> list[Job]:
    jobs = [
        job
        for job in conn.rows("job")
        if job.state is JobState.EVALUATING
        and job.tenant == deployment.tenant
        and job.evaluation.approval is not None
        and job.evaluation.approval.slot == deployment.slot
    ]
    return [*(await find_jobs(conn, [job.id for job in jobs])).values()]


async def find_duplicate(conn: Tables, job: Job, config_hash: str) -> str | None:
    dead = {JobState.FAILED, JobState.CANCELLED}
    duplicates = [
        (other.submitted_at, other.id)
        for other in conn.rows("job")
        if other.tenant == job.tenant
        and other.id != job.id
        and other.config_hash == config_hash
        and other.submitted_at <= job.submitted_at
        and other.state not in dead
    ]
    return min(duplicates)[1] if duplicates else None


async def lock_ledger(conn: Tables) -> None:
    conn.lock_name("ledger")


async def get_ledger(conn: Tables) -> Ledger:
    booked = defaultdict[str, list[Booking]](list)
    held = defaultdict[str, Counter[DeviceType]](Counter)
    for pool, booking, tenant in conn.rows("booking"):
        booked[pool].append(booking)
        if known := conn.get("pool", pool):
            held[tenant][known.device_type] += len(booking.machines) * booking.devices
    pools = tuple(pool.with_bookings(booked[pool.name]) for pool in conn.rows("pool"))
    limits = {tenant: devices for tenant, devices in conn.rows("device_limit") if devices is not None}
    return Ledger(pools, held, limits)


async def save_device_limit(conn: Tables, tenant: str, devices: int | None) -> None:
    conn.put("device_limit", tenant, (tenant, devices))


async def save_pool(conn: Tables, pool: Pool) -> None:
    conn.put("pool", pool.name, pool)


async def is_anyone_queued(conn: Tables) -> bool:
    return bool(conn.rows("queued"))


async def is_back_off_over(conn: Tables, since: datetime, until: datetime) -> bool:
    queued = (conn.get("job", job_id) for job_id in conn.rows("queued"))
    return any(job.not_before and since < job.not_before <= until for job in queued)


async def candidates(conn: Tables, *, now: datetime, at_most: int) -> list[Candidate]:
    number = Counter[object]()
    rows = []
    for job in _queued(conn, now):
        number[_kind(job)] += 1
        if number[_kind(job)] <= (at_most if job.no_capacity_at else 1):
            rows.append(Candidate.of(job, queued_at=job.queued_at))
    return rows


async def everyone_queued(conn: Tables) -> list[Candidate]:
    queued = [conn.get("job", job_id) for job_id in conn.rows("queued")]
    return [Candidate.of(job, queued_at=job.queued_at) for job in queued]


async def one_of_each_kind(conn: Tables) -> list[Candidate]:
    kinds: dict[object, Candidate] = {}
    for job in sorted((conn.get("job", job_id) for job_id in conn.rows("queued")), key=_by_age):
        kinds.setdefault(_kind(job), Candidate.of(job, queued_at=job.queued_at))
    return list(kinds.values())


async def elastic_attempts(conn: Tables, *, scheduled_by: datetime) -> list[ElasticAttempt]:
    booked = ((name, conn.get("job", name[0]), *row) for name, row in conn.items("booking"))
    attempts = [
        (
            booking.since,
            job.id,
            ElasticAttempt(_plain(Candidate.of(job, queued_at=job.queued_at)), pool, booking),
        )
        for (_, number), job, pool, booking, _ in booked
        if job.state is JobState.RUNNING and job.attempt == number and booking.since <= scheduled_by
        if len(booking.machines) < job.spec.resources.nodes and job.spec.resources.min_nodes is not None
    ]
    return [attempt for *_, attempt in sorted(attempts, key=lambda each: each[:2])]


def _plain(candidate: Candidate) -> Candidate:
    return replace(candidate, not_before=None, no_capacity_at={})


async def is_one_growing(conn: Tables) -> bool:
    return any(
        job.state is JobState.STOPPING and job.present.stop.reason is StopReason.GROW
        for job in conn.rows("job")
    )


async def typical_run_time(conn: Tables, *, now: datetime) -> timedelta | None:
    ended = sorted(each for each in conn.rows("run_time") if each[0] > now - timedelta(days=1))[-100:]
    return sum((run_time for _, run_time in ended), timedelta()) / len(ended) if ended else None


async def find_followers(
    conn: Tables, candidate: Candidate, *, now: datetime, at_most: int
) -> list[Candidate]:
    if candidate.no_capacity_at:
        return []
    kind = _kind(conn.get("job", candidate.job_id))
    behind = (
        Candidate.of(job, queued_at=job.queued_at)
        for job in _queued(conn, now)
        if _kind(job) == kind and _by_age(job) > (candidate.queued_at, candidate.job_id)
    )
    return list(islice(behind, at_most))


def _queued(conn: Tables, now: datetime) -> list[Job]:
    """Oldest first."""
    queued = [conn.get("job", job_id) for job_id in conn.rows("queued")]
    due = [job for job in queued if job.not_before is None or job.not_before <= now]
    return sorted(due, key=_by_age)


def _kind(job: Job) -> object:
    return job.tenant, job.spec.tier, job.spec.resources, bool(job.no_capacity_at)


async def find_deployment(conn: Tables, tenant: str, slot: str) -> Deployment | None:
    return conn.get("deployment", (tenant, slot))  # type: ignore[no-any-return]


async def save_deployment(conn: Tables, deployment: Deployment) -> None:
    known = conn.get("deployment", (deployment.tenant, deployment.slot))
    if known is None or known.generation <= deployment.generation:
        conn.put("deployment", (deployment.tenant, deployment.slot), deployment)


async def record_ignored(conn: Tables, job_id: str, envelope: Envelope, reason: str, *, at: datetime) -> None:
    """Nobody reads them here."""


def _by_id(job: Job) -> str:
    return job.id


def _by_age(job: Job) -> tuple[datetime | None, str]:
    return job.queued_at, job.id


async def lock_dataset(conn: Tables, dataset_id: str) -> None:
    conn.lock_name(f"dataset:{dataset_id}")


async def lock_slot(conn: Tables, tenant: str, slot: str) -> None:
    conn.lock_name(f"slot:{tenant}/{slot}")
