"""`services/trainer_agent/store.py` in memory."""

from datetime import datetime

from schemas.training import AttemptMessage, RunnerReport
from services.trainer_agent.model import Attempt
from shared.errors import StaleWrite
from tests.simulation.fast import replace
from tests.simulation.tables import Tables


async def lock_attempt(conn: Tables, job_id: str, number: int, *, tenant: str) -> Attempt:
    known: Attempt | None = conn.get("attempt", (job_id, number))
    if known is None:
        known = Attempt(job_id, number, tenant)
        conn.put("attempt", (job_id, number), known)
        conn.put("newest", job_id, max(number, conn.get("newest", job_id) or 0))
    return known


async def save_attempt(conn: Tables, before: Attempt, after: Attempt) -> None:
    if after == before:
        return
    if conn.get("attempt", (after.job_id, after.number)).revision != before.revision:
        raise StaleWrite(f"attempt {after.number} of {after.job_id} changed")
    conn.put("attempt", (after.job_id, after.number), replace(after, revision=after.revision + 1))


async def hear_runner(conn: Tables, claim: RunnerReport, *, step: int, at: datetime) -> None:
    attempt: Attempt | None = conn.get("attempt", (claim.job_id, claim.attempt))
    runner = attempt.runner(claim.node_index) if attempt else None
    if attempt is not None and runner is not None:
        heard = attempt.with_runner(replace(runner, seen_at=at, step=max(runner.step, step)))
        conn.put("attempt", (claim.job_id, claim.attempt), heard)


async def newest_number(conn: Tables, job_id: str) -> int:
    return conn.get("newest", job_id) or 0


async def open_numbers_below(conn: Tables, job_id: str, number: int) -> list[int]:
    found = []
    for known in range(1, number):
        attempt = conn.get("attempt", (job_id, known))
        if attempt is not None and attempt.is_open:
            found.append(known)
    return found


async def record_dropped(
    conn: Tables, claim: AttemptMessage, reason: str, *, event_id: str, at: datetime
) -> None:
    conn.put("dropped", event_id, reason)
