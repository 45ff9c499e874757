"""SQL of the mirror in MLflow."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic_core import to_jsonable_python

from services.tracker.decide.mirror import Entry, Measured, Run
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read

RUN = Columns("subject_id, tenant, parent_id, last_step, parameters")
ADD_RUN = "INSERT INTO mirrored_run (subject_id, tenant) VALUES ($1, $2) ON CONFLICT DO NOTHING"
# Entries are numbered under this lock, so that those of one run become visible in the order of their numbers.
LOCK_RUN = f"SELECT {RUN.selected} FROM mirrored_run WHERE subject_id = $1 FOR UPDATE"
SAVE_RUN = """
    UPDATE mirrored_run SET last_step = $2, parameters = $3, parent_id = $4, changed_at = now(),
                            due_at = coalesce(due_at, now()), waiting_since = coalesce(waiting_since, now())
     WHERE subject_id = $1"""
ADD_ENTRY = "INSERT INTO mirror_entry (subject_id, entry) VALUES ($1, $2)"
ADD_POINTS = """
    INSERT INTO mirrored_point (subject_id, name, step) SELECT $1, * FROM unnest($2::text[], $3::bigint[])
    ON CONFLICT DO NOTHING RETURNING name, step"""
DUE_RUNS = """
    SELECT subject_id, tenant, parent_id, run_id, waiting_since, failures FROM mirrored_run
     WHERE due_at <= $1 ORDER BY due_at LIMIT $2"""
NEXT_ENTRIES = "SELECT number, entry FROM mirror_entry WHERE subject_id = $1 ORDER BY number LIMIT $2"
FORGET_ENTRIES = "DELETE FROM mirror_entry WHERE subject_id = $1 AND number <= $2"
SAVE_SENT = """
    UPDATE mirrored_run SET run_id = $2, failures = 0, problem = '',
                            due_at = CASE WHEN oldest.created_at IS NOT NULL THEN now() END,
                            waiting_since = oldest.created_at
      FROM (VALUES (1)) AS one LEFT JOIN LATERAL (
           SELECT created_at FROM mirror_entry WHERE subject_id = $1 ORDER BY number LIMIT 1) AS oldest ON true
     WHERE subject_id = $1"""
SAVE_PROBLEM = (
    "UPDATE mirrored_run SET failures = failures + 1, problem = $2, due_at = $3 WHERE subject_id = $1"
)
WAITING = "SELECT count(*) AS runs, min(waiting_since) AS since FROM mirrored_run WHERE due_at IS NOT NULL"
PRUNE_RUNS = """
    DELETE FROM mirrored_run WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM mirrored_run WHERE changed_at < now() - $1::interval LIMIT $2))"""


@dataclass(frozen=True)
class DueRun:
    """A run that something waits to be logged in."""

    subject_id: str
    tenant: str
    parent_id: str | None
    run_id: str | None
    """MLflow's id; None until the run is there."""
    waiting_since: datetime
    failures: int
    """Times in a row that MLflow refused what was to be logged."""


async def lock_run(conn: Connection, subject_id: str, tenant: str) -> Run:
    """Return what the run has, which nobody else adds to until the commit."""
    await conn.execute(ADD_RUN, subject_id, tenant)
    row = await conn.fetchrow(LOCK_RUN, subject_id)
    assert row is not None, "the row was added"
    return read(Run, row)


async def save_run(conn: Connection, run: Run) -> None:
    await conn.execute(SAVE_RUN, run.subject_id, run.last_step, sorted(run.parameters), run.parent_id)


async def add_points(conn: Connection, subject_id: str, measured: Sequence[Measured]) -> set[tuple[str, int]]:
    """Note these as logged; return name and step of those that were not before."""
    points = [(name, each.step) for each in measured for name in each.values]
    if not points:
        return set()
    names, steps = zip(*points, strict=True)
    rows = await conn.fetch(ADD_POINTS, subject_id, list(names), list(steps))
    return {(row["name"], row["step"]) for row in rows}


async def add_entry(conn: Connection, subject_id: str, entry: Entry) -> None:
    await conn.execute(ADD_ENTRY, subject_id, to_jsonable_python(entry, inf_nan_mode="strings"))


async def list_due_runs(conn: Connection, *, now: datetime, at_most: int) -> list[DueRun]:
    return [read(DueRun, row) for row in await conn.fetch(DUE_RUNS, now, at_most)]


async def list_entries(conn: Connection, subject_id: str, *, at_most: int) -> tuple[int, list[Entry]]:
    """Return the oldest entries that wait, and the number of the last of them; 0 where none does."""
    rows = await conn.fetch(NEXT_ENTRIES, subject_id, at_most)
    return rows[-1]["number"] if rows else 0, [read(Entry, row["entry"]) for row in rows]


async def save_sent(conn: Connection, subject_id: str, run_id: str, *, up_to: int) -> None:
    """Forget the entries that were logged; the run is due no more where none is left."""
    await conn.execute(LOCK_RUN, subject_id)
    await conn.execute(FORGET_ENTRIES, subject_id, up_to)
    await conn.execute(SAVE_SENT, subject_id, run_id)


async def save_problem(conn: Connection, subject_id: str, problem: str, *, retry_at: datetime) -> None:
    await conn.execute(SAVE_PROBLEM, subject_id, problem, retry_at)


async def measure_waiting(conn: Connection, *, now: datetime) -> tuple[int, timedelta]:
    """Return in how many runs something waits to be logged, and for how long the oldest has."""
    row = await conn.fetchrow(WAITING)
    assert row is not None, "an aggregate has one row"
    return row["runs"], now - row["since"] if row["since"] else timedelta(0)
