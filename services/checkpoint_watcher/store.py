"""SQL of the checkpoint watcher; the only file that knows column names."""

from datetime import datetime

from schemas.base import BestBundle, BundleRef
from schemas.job import JobScheduled
from services.checkpoint_watcher.model import Attempt, Checkpoint, CheckpointState
from shared.errors import ParentUnknown
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read

INSERT_CHECKPOINT = """
    INSERT INTO checkpoint (job_id, tenant, attempt, step, manifest_sha256, kind, state, written_at, best)
    VALUES ($1, $2, $3, $4, $5, $6, 'written', $7, $8)
    ON CONFLICT (job_id, attempt, step, manifest_sha256) DO NOTHING RETURNING true"""
SET_STATE = """
    UPDATE checkpoint SET state = $5, size_bytes = coalesce($6, size_bytes)
     WHERE job_id = $1 AND attempt = $2 AND step = $3 AND manifest_sha256 = $4"""
CHECKPOINT = Columns(
    "job_id, tenant, attempt=bundle.attempt, step=bundle.step, manifest_sha256=bundle.manifest_sha256, state, best"
)
LIST_CHECKPOINTS = f"""
    SELECT {CHECKPOINT.selected} FROM checkpoint WHERE job_id = $1 AND state <> 'expired' FOR UPDATE"""
PRUNE_CHECKPOINTS = """
    DELETE FROM checkpoint WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM checkpoint
         WHERE state = 'expired' AND written_at < now() - $1::interval LIMIT $2))"""
OPEN_ATTEMPT = """
    INSERT INTO attempt (job_id, tenant, attempt, interval_seconds, resume_attempt, resume_step, is_open)
    VALUES ($1, $2, $3, $4, $5, $6, true)
    ON CONFLICT (job_id) DO UPDATE SET attempt = $3, interval_seconds = $4, resume_attempt = $5,
        resume_step = $6, is_open = true, started_at = NULL, last_written_at = NULL
     WHERE attempt.attempt < $3"""
START_ATTEMPT = "UPDATE attempt SET started_at = $3 WHERE job_id = $1 AND attempt = $2"
NOTE_WRITTEN = """
    UPDATE attempt SET last_written_at = $3, last_step = $4 WHERE job_id = $1 AND attempt = $2"""
CLOSE_ATTEMPT = """
    UPDATE attempt SET is_open = false WHERE job_id = $1 AND attempt <= $2 AND is_open RETURNING attempt"""
USE_BUNDLE = """
    INSERT INTO bundle_use (job_id, trained_by, attempt, step) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"""
END_USE = "DELETE FROM bundle_use WHERE job_id = $1"
USED_BUNDLES = "SELECT attempt, step FROM bundle_use WHERE trained_by = $1"
LOCK_JOB = "SELECT true FROM attempt WHERE job_id = $1 FOR UPDATE"
FIND_ATTEMPT = """
    SELECT job_id, tenant, attempt, interval_seconds, is_open, last_step, last_written_at, started_at,
           CASE WHEN resume_step IS NOT NULL THEN ARRAY[resume_attempt, resume_step] END AS resume
      FROM attempt WHERE job_id = $1"""


async def lock_job(conn: Connection, job_id: str) -> None:
    """Lock the job before anything about its bundles is written or emitted, so that tasks of one job take turns."""
    await conn.execute(LOCK_JOB, job_id)


async def add_checkpoint(
    conn: Connection,
    job_id: str,
    tenant: str,
    bundle: BundleRef,
    kind: str,
    *,
    best: BestBundle | None,
    at: datetime,
) -> bool:
    """Add the bundle and return whether it is new; a final fact may name one that was written periodically."""
    key = job_id, tenant, bundle.attempt, bundle.step, bundle.manifest_sha256
    named = best and best.model_dump(mode="json")
    return bool(await conn.fetchval(INSERT_CHECKPOINT, *key, kind, at, named))


async def set_state(
    conn: Connection, job_id: str, bundle: BundleRef, state: CheckpointState, *, size_bytes: int | None = None
) -> None:
    await conn.execute(
        SET_STATE, job_id, bundle.attempt, bundle.step, bundle.manifest_sha256, state, size_bytes
    )


async def list_checkpoints(conn: Connection, job_id: str) -> list[Checkpoint]:
    """Return all checkpoints of a job that are not deleted, locked: retention of one job runs one at a time."""
    return [read(Checkpoint, row) for row in await conn.fetch(LIST_CHECKPOINTS, job_id)]


async def open_attempt(conn: Connection, scheduled: JobScheduled) -> None:
    resume = scheduled.resume if scheduled.resume and scheduled.resume.job_id is None else None
    await conn.execute(
        OPEN_ATTEMPT,
        scheduled.job_id,
        scheduled.tenant,
        scheduled.attempt,
        scheduled.spec.recipe.checkpoint.every_seconds,
        resume.attempt if resume else None,
        resume.step if resume else None,
    )


async def use_bundle(conn: Connection, job_id: str, trained_by: str, bundle: BundleRef) -> None:
    """Note that the job starts from this checkpoint of another one, or continues it; it stays until `end_use`."""
    await conn.execute(USE_BUNDLE, job_id, trained_by, bundle.attempt, bundle.step)


async def end_use(conn: Connection, job_id: str) -> None:
    await conn.execute(END_USE, job_id)


async def used_bundles(conn: Connection, job_id: str) -> set[tuple[int, int]]:
    """Return attempt and step of the job's bundles from which jobs that are not over start."""
    return {(row["attempt"], row["step"]) for row in await conn.fetch(USED_BUNDLES, job_id)}


def name_of(job_id: str, attempt: int) -> str:
    """Return the name that facts about an attempt wait for until its JobScheduled was here."""
    return f"attempt:{job_id}/{attempt}"


async def require_attempt(conn: Connection, job_id: str, attempt: int) -> None:
    """Raise ParentUnknown where the attempt is later than any that is known."""
    present = await find_attempt(conn, job_id)
    if present is None or present.attempt < attempt:
        raise ParentUnknown(name_of(job_id, attempt))


async def start_attempt(conn: Connection, job_id: str, attempt: int, *, at: datetime) -> None:
    await conn.execute(START_ATTEMPT, job_id, attempt, at)


async def note_written(conn: Connection, job_id: str, attempt: int, step: int, *, at: datetime) -> None:
    await conn.execute(NOTE_WRITTEN, job_id, attempt, at, step)


async def close_attempt(conn: Connection, job_id: str, attempt: int) -> int | None:
    """Close the job's present attempt unless it is later; return its number if it was open."""
    closed: int | None = await conn.fetchval(CLOSE_ATTEMPT, job_id, attempt)
    return closed


async def find_attempt(conn: Connection, job_id: str) -> Attempt | None:
    row = await conn.fetchrow(FIND_ATTEMPT, job_id)
    return read(Attempt, row) if row else None
