"""Rows that messages of one transaction share: read once for all of them, and written once at its end.

Until then nobody else changes what is locked. A message that has its transaction for itself reads and writes for
itself.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from services.scheduler import queue_store, store
from services.scheduler.decide.ledger import Ledger
from services.scheduler.model import Base, Dataset, Job
from shared.errors import ParentUnknown
from shared.messaging.unit import Unit
from shared.postgres.database import Connection

T = TypeVar("T")

JOBS = "jobs"
CHANGES = "changes"
LEDGER = "ledger"


@dataclass
class Changes:
    """What is still to be written."""

    jobs: dict[str, Job] = field(default_factory=dict)
    attempts: dict[tuple[str, int], Job] = field(default_factory=dict)
    """By job and number: the job as it was with its present attempt."""
    replanned: set[str] = field(default_factory=set)
    """Ids of jobs that may have other plans than were read."""
    freed: list[store.FreedNodes] = field(default_factory=list)

    async def write(self, conn: Connection) -> dict[str, Job]:
        """Write them; return the jobs as they are then. Raises StaleWrite."""
        planned_before = self.jobs.keys() - self.replanned
        jobs = [*self.jobs.values()]
        saved = await store.save_jobs(conn, jobs, planned_before=planned_before) if jobs else []
        if self.attempts:
            await store.save_attempts(conn, [*self.attempts.values()])
        if self.freed:
            await store.free_nodes(conn, self.freed)
        self.jobs, self.attempts, self.replanned, self.freed = {}, {}, set(), []
        return {job.id: job for job in saved}


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
    if unit.shared is not None:
        (await _jobs(unit))[job.id] = job


async def save_job(unit: Unit, job: Job) -> None:
    """Write the job and, where it is another one than before, its attempt. Raises StaleWrite."""
    known = await _jobs(unit)
    before = known.get(job.id)
    changes = _changes(unit)
    changes.jobs[job.id] = job
    if before is None or (before.plan, before.stage_plans) != (job.plan, job.stage_plans):
        changes.replanned.add(job.id)
    if job.run is not None and (before is None or before.run != job.run):
        changes.attempts[job.id, job.run.number] = job
    if unit.shared is None:
        await changes.write(unit.conn)
    else:
        known[job.id] = job


async def free_nodes(unit: Unit, job_id: str, attempt: int) -> None:
    """Free the nodes of any attempt, whatever the job's state."""
    changes = _changes(unit)
    changes.freed.append(store.FreedNodes(job_id, attempt, unit.now))
    if unit.shared is None:
        await changes.write(unit.conn)


async def find_duplicate(unit: Unit, job: Job, config_hash: str) -> str | None:
    """The first job of the tenant with that configuration, unless it came to nothing."""
    await write_changes(unit)
    return await store.find_duplicate(unit.conn, job, config_hash)


async def find_dataset(unit: Unit, dataset_id: str) -> Dataset | None:
    """Return the dataset, locked."""

    async def read() -> Dataset | None:
        await store.lock_dataset(unit.conn, dataset_id)
        return await store.find_dataset(unit.conn, dataset_id)

    return await _once(unit, f"dataset {dataset_id}", read)


async def find_base(unit: Unit, name: str) -> Base | None:
    """Return what the name points to until the transaction ends; None where that is not known."""
    return await _once(unit, f"base {name}", lambda: store.find_base(unit.conn, name))


async def find_other_base(unit: Unit, name: str, base_sha: str) -> Base | None:
    """What the name points to where that is known and not these files; it may change within the transaction."""
    return await _once(
        unit, f"base {name} but {base_sha}", lambda: store.find_other_base(unit.conn, name, base_sha)
    )


async def get_ledger(unit: Unit) -> Ledger:
    """Return the ledger, for what is reported: it does not know what messages of the same transaction changed."""
    return await _once(unit, LEDGER, lambda: queue_store.get_ledger(unit.conn))


async def write_changes(unit: Unit) -> None:
    """Write what was saved so far: a statement follows that reads it."""
    if unit.shared is not None:
        (await _jobs(unit)).update(await _changes(unit).write(unit.conn))


async def forget(unit: Unit) -> None:
    """Read all again that is asked for from now on: something was written that other reads depend on."""
    if unit.shared is not None:
        await write_changes(unit)
        changes = _changes(unit)
        unit.shared.memory.clear()
        unit.shared.memory |= {JOBS: {}, CHANGES: changes}


async def _jobs(unit: Unit) -> dict[str, Job | None]:
    """Return the jobs of all messages that share the transaction, by id; None for one that is not known (yet)."""

    async def read() -> dict[str, Job | None]:
        assert unit.shared is not None, "alone, a message has nothing in common"
        job_ids = {
            job_id for each in unit.shared.deliveries if (job_id := getattr(each.message, "job_id", None))
        }
        known = await store.find_jobs(unit.conn, [*job_ids]) if job_ids else {}
        return {job_id: known.get(job_id) for job_id in job_ids}

    return await _once(unit, JOBS, read) if unit.shared is not None else {}


def _changes(unit: Unit) -> Changes:
    """Return what is to be written at the end; alone, what is to be written now."""
    if unit.shared is None:
        return Changes()
    if CHANGES not in unit.shared.memory:
        unit.shared.memory[CHANGES] = Changes()
        unit.shared.before_end(lambda: write_changes(unit))
    changes: Changes = unit.shared.memory[CHANGES]
    return changes


async def _once(unit: Unit, key: str, read: Callable[[], Awaitable[T]]) -> T:
    if unit.shared is None:
        return await read()
    memory = unit.shared.memory
    if key not in memory:
        memory[key] = await read()
    value: T = memory[key]
    return value
