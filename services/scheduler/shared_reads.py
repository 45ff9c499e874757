"""What messages that share a transaction read once for all of them. Until its end nobody else changes what is locked.

A message that has its transaction for itself reads for itself.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.scheduler import queue_store, store
from services.scheduler.decide.ledger import Ledger
from services.scheduler.model import Base, Dataset, Job
from shared.errors import ParentUnknown
from shared.messaging.unit import Unit

T = TypeVar("T")

JOBS = "jobs"
LEDGER = "ledger"


async def find_job(unit: Unit, job_id: str) -> Job | None:
    """Return the job, locked, as the last message left it."""
    jobs = await _jobs(unit)
    return jobs[job_id] if job_id in jobs else await store.find_job(unit.conn, job_id)


async def get_job(unit: Unit, job_id: str) -> Job:
    """Return the job, locked. A fact about a job that is not known (yet) waits for it."""
    if (job := await find_job(unit, job_id)) is None:
        raise ParentUnknown(f"job:{job_id}")
    return job


async def add_job(unit: Unit, job: Job) -> None:
    await store.add_job(unit.conn, job)
    await _keep(unit, job)


async def save_job(unit: Unit, job: Job) -> None:
    """Write the job and, where it is another one than before, its attempt. Raises StaleWrite."""
    before = (await _jobs(unit)).get(job.id)
    has_same_attempt = before is not None and before.run == job.run
    await _keep(unit, await store.save_job(unit.conn, job, with_attempt=not has_same_attempt))


async def find_dataset(unit: Unit, dataset_id: str) -> Dataset | None:
    """Return the dataset, locked."""

    async def read() -> Dataset | None:
        await store.lock_dataset(unit.conn, dataset_id)
        return await store.find_dataset(unit.conn, dataset_id)

    return await _once(unit, f"dataset {dataset_id}", read)


async def find_base(unit: Unit, name: str) -> Base | None:
    """Return what the name points to until the transaction ends; None where that is not known."""
    return await _once(unit, f"base {name}", lambda: store.find_base(unit.conn, name))


async def get_ledger(unit: Unit) -> Ledger:
    """Return the ledger, for what is reported: it does not know what messages of the same transaction changed."""
    return await _once(unit, LEDGER, lambda: queue_store.get_ledger(unit.conn))


def forget(unit: Unit) -> None:
    """Read all again that is asked for from now on: something was written that other reads depend on."""
    if unit.shared is not None:
        unit.shared.memory.clear()
        unit.shared.memory[JOBS] = {}


async def _jobs(unit: Unit) -> dict[str, Job | None]:
    """Return the jobs of all messages that share the transaction, by id; None for one that is not known (yet)."""

    async def read() -> dict[str, Job | None]:
        assert unit.shared is not None, "alone, a message has nothing in common"
        job_ids = {
            job_id for each in unit.shared.deliveries if (job_id := getattr(each.message, "job_id", None))
        }
        known = await store.find_jobs(unit.conn, [*job_ids])
        return {job_id: known.get(job_id) for job_id in job_ids}

    return await _once(unit, JOBS, read) if unit.shared is not None else {}


async def _keep(unit: Unit, job: Job) -> None:
    if unit.shared is not None:
        (await _jobs(unit))[job.id] = job


async def _once(unit: Unit, key: str, read: Callable[[], Awaitable[T]]) -> T:
    if unit.shared is None:
        return await read()
    memory = unit.shared.memory
    if key not in memory:
        memory[key] = await read()
    value: T = memory[key]
    return value
