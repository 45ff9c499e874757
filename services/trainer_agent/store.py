"""SQL of the trainer_agent's schema; the only file that knows column names."""

from collections.abc import Collection
from datetime import datetime

from asyncpg import Record

from schemas.training import REPORTS, RunnerReport
from services.trainer_agent.model import Attempt, Claim, Runner
from shared.errors import StaleWrite
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read
from shared.signatures import Signed

OPEN_ATTEMPT = """
    INSERT INTO attempt (job_id, number, tenant) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"""

ATTEMPT = Columns(
    "state, job_order=order, nodes, stop_reason=stop.reason, stop_deadline=stop.deadline, failure_class=failure,"
    " nodes_released, last_step, last_bundle, origin, public_keys, addresses"
)
RUNNER = Columns("node_index, node_id, host, port, report_id, seen_at, step, has_stopped, certificate")

READ_ATTEMPT = f"""
    SELECT job_id, number, tenant, revision, {ATTEMPT.selected}
      FROM attempt WHERE job_id = $1 AND number = $2"""

LOCK_ATTEMPT = f"{READ_ATTEMPT} FOR UPDATE"

SELECT_RUNNERS = f"SELECT {RUNNER.selected} FROM runner WHERE job_id = $1 AND number = $2 ORDER BY node_index"

SAVE_ATTEMPT = f"""
    UPDATE attempt SET ({ATTEMPT.names}) = ROW({ATTEMPT.parameters(4)}), revision = revision + 1,
                       closed_at = CASE WHEN $4 = 'closed' THEN coalesce(closed_at, now()) END
     WHERE job_id = $1 AND number = $2 AND revision = $3 RETURNING revision"""

FIND_PUBLIC_KEYS = "SELECT public_keys FROM attempt WHERE job_id = $1 AND number = $2"

SAVE_RUNNER = f"""
    INSERT INTO runner (job_id, number, {RUNNER.names}) VALUES ($1, $2, {RUNNER.parameters(3)})
    ON CONFLICT (job_id, number, node_index) DO UPDATE SET {RUNNER.excluded}"""

HEAR_RUNNER = """
    UPDATE runner SET seen_at = $4, step = greatest(step, $5)
     WHERE job_id = $1 AND number = $2 AND node_index = $3"""

NEWEST = "SELECT coalesce(max(number), 0) FROM attempt WHERE job_id = $1 AND job_order IS NOT NULL"

FIND_REVISION = f"""
    SELECT (SELECT revision FROM attempt WHERE job_id = $1 AND number = $2) AS revision, ({NEWEST}) AS newest"""

FIND_REVISIONS = """
    SELECT job_id, number, revision FROM attempt
      JOIN unnest($1::text[], $2::int[]) AS asked (job_id, number) USING (job_id, number)"""

OPEN_BELOW = """
    SELECT number FROM attempt WHERE job_id = $1 AND number < $2 AND state <> 'closed' ORDER BY number"""

KEEP_CLAIM = """
    INSERT INTO kept_claim (job_id, number, event_id, type, payload, kept_at, signed, signature)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (event_id) DO NOTHING"""

TAKE_CLAIMS = """
    DELETE FROM kept_claim WHERE job_id = $1 AND number = $2
    RETURNING id, event_id, type, payload, signed, signature"""

PRUNE_KEPT = """
    DELETE FROM kept_claim WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM kept_claim WHERE kept_at < now() - $1::interval LIMIT $2))"""

PRUNE_DROPPED = """
    DELETE FROM dropped_claim WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM dropped_claim WHERE dropped_at < now() - $1::interval LIMIT $2))"""

PRUNE_RUNNERS = """
    DELETE FROM runner WHERE ctid = ANY(ARRAY(
        SELECT row.ctid FROM attempt CROSS JOIN LATERAL (
            SELECT ctid FROM runner
             WHERE (runner.job_id, runner.number) = (attempt.job_id, attempt.number) LIMIT $2) AS row
         WHERE closed_at < now() - $1::interval LIMIT $2))"""

PRUNE_ATTEMPTS = """
    DELETE FROM attempt WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM attempt
         WHERE closed_at < now() - $1::interval
           AND (SELECT true FROM runner
                 WHERE (runner.job_id, runner.number) = (attempt.job_id, attempt.number) LIMIT 1) IS NULL
         LIMIT $2))"""

RECORD_DROPPED = """
    INSERT INTO dropped_claim (job_id, number, event_id, type, reason, payload, dropped_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)"""


async def lock_attempt(conn: Connection, job_id: str, number: int, *, tenant: str) -> Attempt:
    """Return the attempt, locked, opened by this call if no fact named it before."""
    await conn.execute(OPEN_ATTEMPT, job_id, number, tenant)
    attempt = await find_attempt(conn, job_id, number)
    assert attempt is not None, "the row was inserted above"
    return attempt


async def find_attempt(conn: Connection, job_id: str, number: int) -> Attempt | None:
    """Return the attempt, locked; None if it is not open yet."""
    row = await conn.fetchrow(LOCK_ATTEMPT, job_id, number)
    if row is None:
        return None
    return read(Attempt, row, runners=await _runners(conn, job_id, number))


async def _runners(conn: Connection, job_id: str, number: int) -> tuple[Runner, ...]:
    return tuple(read(Runner, runner) for runner in await conn.fetch(SELECT_RUNNERS, job_id, number))


async def read_attempt(conn: Connection, job_id: str, number: int) -> Attempt | None:
    """Return the attempt as it is now, without a lock; None if it is not open yet."""
    row = await conn.fetchrow(READ_ATTEMPT, job_id, number)
    return None if row is None else read(Attempt, row, runners=await _runners(conn, job_id, number))


async def find_revision(conn: Connection, job_id: str, number: int) -> tuple[int | None, int]:
    """Return the attempt's revision, None if it is not open yet, and the number of the job's newest attempt."""
    row = await conn.fetchrow(FIND_REVISION, job_id, number)
    assert row is not None, "a row of two values"
    return row["revision"], row["newest"]


async def find_revisions(
    conn: Connection, attempts: Collection[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return the revisions of those of these attempts, by job and number, that are open yet."""
    job_ids, numbers = [job_id for job_id, _ in attempts], [number for _, number in attempts]
    rows = await conn.fetch(FIND_REVISIONS, job_ids, numbers)
    return {(row["job_id"], row["number"]): row["revision"] for row in rows}


async def save_attempt(conn: Connection, before: Attempt, after: Attempt) -> None:
    """Write what changed. Raises StaleWrite, which is retryable, if someone else wrote since `before` was read."""
    if after == before:
        return
    key = (after.job_id, after.number, before.revision)
    if await conn.fetchval(SAVE_ATTEMPT, *key, *ATTEMPT.values(after)) is None:
        raise StaleWrite(f"attempt {after.number} of {after.job_id} changed since revision {before.revision}")
    for runner in set(after.runners) - set(before.runners):
        await conn.execute(SAVE_RUNNER, after.job_id, after.number, *RUNNER.values(runner))


async def find_public_keys(conn: Connection, job_id: str, number: int) -> list[str] | None:
    """Return the keys of the attempt's nodes, as they are now and without a lock: heartbeats are many."""
    keys: list[str] | None = await conn.fetchval(FIND_PUBLIC_KEYS, job_id, number)
    return keys


async def hear_runner(conn: Connection, claim: RunnerReport, *, step: int, at: datetime) -> None:
    """Note that a runner lives, which any report shows. Touches the runner's row only: heartbeats are many."""
    await conn.execute(HEAR_RUNNER, claim.job_id, claim.attempt, claim.node_index, at, step)


async def newest_number(conn: Connection, job_id: str) -> int:
    """Return the number of the newest attempt that was scheduled; 0 where none was."""
    return int(await conn.fetchval(NEWEST, job_id))


async def open_numbers_below(conn: Connection, job_id: str, number: int) -> list[int]:
    return [row["number"] for row in await conn.fetch(OPEN_BELOW, job_id, number)]


async def keep_claim(conn: Connection, claim: Claim, *, at: datetime) -> None:
    """Keep a claim once, also where it comes again after the inbox has forgotten it."""
    report = claim.report
    payload = report.model_dump(mode="json")
    signed = (claim.signed.content, claim.signed.signature) if claim.signed else (None, None)
    await conn.execute(
        KEEP_CLAIM, report.job_id, report.attempt, claim.event_id, report.type, payload, at, *signed
    )


async def take_claims(conn: Connection, job_id: str, number: int) -> list[Claim]:
    """Return the claims that were kept for the attempt, in their order, and keep them no more."""
    rows = await conn.fetch(TAKE_CLAIMS, job_id, number)
    return [
        Claim(row["event_id"], REPORTS[row["type"]].model_validate(row["payload"]), _signed(row))
        for row in sorted(rows, key=lambda row: int(row["id"]))
    ]


def _signed(row: Record) -> Signed | None:
    return None if row["signed"] is None else Signed(row["signed"], row["signature"])


async def record_dropped(conn: Connection, claim: Claim, reason: str, *, at: datetime) -> None:
    report = claim.report
    payload = report.model_dump(mode="json")
    await conn.execute(
        RECORD_DROPPED, report.job_id, report.attempt, claim.event_id, report.type, reason, payload, at
    )
