"""Jobs in the scheduler's tables, put there by a test."""

from services.scheduler import store
from services.scheduler.model import Job
from shared.postgres.database import Connection


async def save(conn: Connection, job: Job) -> None:
    """Write a known job with its present attempt."""
    await store.save_jobs(conn, [job])
    if job.run is not None:
        await store.save_attempts(conn, [job])
