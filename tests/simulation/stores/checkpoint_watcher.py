"""`services/checkpoint_watcher/store.py` in memory."""

from datetime import datetime

from schemas.base import BestBundle, BundleRef
from schemas.job import JobScheduled
from services.checkpoint_watcher.model import Attempt, Checkpoint, CheckpointState
from services.checkpoint_watcher.store import name_of
from shared.errors import ParentUnknown
from tests.simulation.fast import replace
from tests.simulation.tables import Tables

__all__ = ["name_of"]


def _key(job_id: str, bundle: BundleRef) -> tuple[str, int, int, str]:
    return job_id, bundle.attempt, bundle.step, bundle.manifest_sha256


async def lock_job(conn: Tables, job_id: str) -> None:
    conn.lock_row("attempt", job_id)


async def add_checkpoint(
    conn: Tables,
    job_id: str,
    tenant: str,
    bundle: BundleRef,
    kind: str,
    *,
    best: BestBundle | None,
    at: datetime,
) -> bool:
    key = _key(job_id, bundle)
    if conn.get("checkpoint", key) is not None:
        return False
    conn.put("checkpoint", key, Checkpoint(job_id, tenant, bundle, CheckpointState.WRITTEN, best))
    return True


async def set_state(
    conn: Tables, job_id: str, bundle: BundleRef, state: CheckpointState, *, size_bytes: int | None = None
) -> None:
    key = _key(job_id, bundle)
    conn.put("checkpoint", key, replace(conn.get("checkpoint", key), state=state))


async def list_checkpoints(conn: Tables, job_id: str) -> list[Checkpoint]:
    rows = [row for row in conn.rows("checkpoint") if row.job_id == job_id]
    checkpoints = [row for row in rows if row.state is not CheckpointState.EXPIRED]
    for checkpoint in checkpoints:
        conn.lock_row("checkpoint", _key(job_id, checkpoint.bundle))
    return checkpoints


async def open_attempt(conn: Tables, scheduled: JobScheduled) -> None:
    known: Attempt | None = conn.get("attempt", scheduled.job_id)
    if known is not None and known.attempt >= scheduled.attempt:
        return
    resume = scheduled.resume if scheduled.resume and scheduled.resume.job_id is None else None
    attempt = Attempt(
        job_id=scheduled.job_id,
        tenant=known.tenant if known else scheduled.tenant,
        attempt=scheduled.attempt,
        interval_seconds=scheduled.spec.recipe.checkpoint.every_seconds,
        resume=(resume.attempt, resume.step) if resume else None,
        is_open=True,
        last_step=known.last_step if known else 0,
        last_written_at=None,
        started_at=None,
    )
    conn.put("attempt", scheduled.job_id, attempt)


async def use_bundle(conn: Tables, job_id: str, trained_by: str, bundle: BundleRef) -> None:
    use = job_id, trained_by, bundle.attempt, bundle.step
    conn.put("bundle_use", use, use)


async def end_use(conn: Tables, job_id: str) -> None:
    for use in [use for use in conn.rows("bundle_use") if use[0] == job_id]:
        conn.delete("bundle_use", use)


async def used_bundles(conn: Tables, job_id: str) -> set[tuple[int, int]]:
    return {
        (attempt, step) for _, trained_by, attempt, step in conn.rows("bundle_use") if trained_by == job_id
    }


async def require_attempt(conn: Tables, job_id: str, attempt: int) -> None:
    present = await find_attempt(conn, job_id)
    if present is None or present.attempt < attempt:
        raise ParentUnknown(name_of(job_id, attempt))


async def start_attempt(conn: Tables, job_id: str, attempt: int, *, at: datetime) -> None:
    known: Attempt | None = conn.get("attempt", job_id)
    if known is not None and known.attempt == attempt:
        conn.put("attempt", job_id, replace(known, started_at=at))


async def note_written(conn: Tables, job_id: str, attempt: int, step: int, *, at: datetime) -> None:
    known: Attempt | None = conn.get("attempt", job_id)
    if known is not None and known.attempt == attempt:
        conn.put("attempt", job_id, replace(known, last_written_at=at, last_step=step))


async def close_attempt(conn: Tables, job_id: str, attempt: int) -> int | None:
    known: Attempt | None = conn.get("attempt", job_id)
    if known is None or known.attempt > attempt or not known.is_open:
        return None
    conn.put("attempt", job_id, replace(known, is_open=False))
    return known.attempt


async def find_attempt(conn: Tables, job_id: str) -> Attempt | None:
    return conn.get("attempt", job_id)  # type: ignore[no-any-return]
