"""`services/trainer_agent/store.py` in memory."""

from datetime import datetime

from schemas.training import RunnerReport
from services.trainer_agent.model import Attempt, Claim
from shared.errors import StaleWrite
from tests.simulation.fast import replace
from tests.simulation.tables import Tables


async def lock_attempt(conn: Tables, job_id: str, number: int, *, tenant: str) -> Attempt:
    known: Attempt | None = conn.get("attempt", (job_id, number))
    if known is None:
        known = Attempt(job_id, number, tenant)
        conn.put("attempt", (job_id, number), known)
    conn.lock_row("attempt", (job_id, number))
    return known


async def find_attempt(conn: Tables, job_id: str, number: int) -> Attempt | None:
    conn.lock_row("attempt", (job_id, number))
    return conn.get("attempt", (job_id, number))  # type: ignore[no-any-return]


async def save_attempt(conn: Tables, before: Attempt, after: Attempt) -> None:
    if after == before:
        return
    if conn.get("attempt", (after.job_id, after.number)).revision != before.revision:
        raise StaleWrite(f"attempt {after.number} of {after.job_id} changed")
    _put(conn, replace(after, revision=after.revision + 1))
    if after.order is not None:
        conn.put("newest", after.job_id, max(after.number, conn.get("newest", after.job_id) or 0))


async def find_public_keys(conn: Tables, job_id: str, number: int) -> list[str] | None:
    attempt: Attempt | None = conn.get("attempt", (job_id, number))
    return None if attempt is None or attempt.public_keys is None else list(attempt.public_keys)


async def hear_runner(conn: Tables, claim: RunnerReport, *, step: int, at: datetime) -> None:
    attempt: Attempt | None = conn.get("attempt", (claim.job_id, claim.attempt))
    runner = attempt.runner(claim.node_index) if attempt else None
    if attempt is not None and runner is not None:
        _put(conn, attempt.with_runner(replace(runner, seen_at=at, step=max(runner.step, step))))


def _put(conn: Tables, attempt: Attempt) -> None:
    runners = tuple(sorted(attempt.runners, key=lambda runner: runner.node_index))
    conn.put("attempt", (attempt.job_id, attempt.number), replace(attempt, runners=runners))


async def newest_number(conn: Tables, job_id: str) -> int:
    return conn.get("newest", job_id) or 0


async def open_numbers_below(conn: Tables, job_id: str, number: int) -> list[int]:
    numbers = []
    for known in range(1, number):
        attempt = conn.get("attempt", (job_id, known))
        if attempt is not None and attempt.is_open:
            numbers.append(known)
    return numbers


async def keep_claim(conn: Tables, claim: Claim, *, at: datetime) -> None:
    report = claim.report
    kept = conn.get("kept", (report.job_id, report.attempt)) or ()
    if claim.event_id not in {each.event_id for each in kept}:
        conn.put("kept", (report.job_id, report.attempt), (*kept, claim))


async def take_claims(conn: Tables, job_id: str, number: int) -> list[Claim]:
    kept = conn.get("kept", (job_id, number)) or ()
    conn.delete("kept", (job_id, number))
    return list(kept)


async def record_dropped(conn: Tables, claim: Claim, reason: str, *, at: datetime) -> None:
    conn.put("dropped", claim.event_id, reason)
