"""SQL of the sweeps."""

from datetime import datetime
from decimal import Decimal

from schemas.job import Artifact, JobEvaluating
from services.tracker.decide.sweeps import Sweep
from services.tracker.decide.trial import Trial
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read

SWEEP = Columns("id, tenant, dataset_id, spec, state, stop")
ADD_SWEEP = f"INSERT INTO sweep ({SWEEP.names}, submitted_at) VALUES ({SWEEP.parameters()}, $7)"
LOCK_SWEEP = f"SELECT {SWEEP.selected} FROM sweep WHERE id = $1 FOR UPDATE"
SAVE_SWEEP = "UPDATE sweep SET state = $2, stop = $3, ended_at = $4 WHERE id = $1"
LIMITED_SWEEPS = """
    SELECT id FROM sweep WHERE state = 'running' AND spec ->> 'max_cost' IS NOT NULL ORDER BY id"""
TRIAL = Columns(
    "sweep_id, number, job_id, parameters, config_hash, state, is_open, num_steps, losses, is_trained,"
    " best_valid_loss, is_measured, final_loss, valid_loss, duplicate_of, message"
)
LIST_TRIALS = f"SELECT {TRIAL.selected} FROM trial WHERE sweep_id = $1 ORDER BY number"
SWEEP_OF = "SELECT sweep_id FROM trial WHERE job_id = $1"
SAVE_TRIAL = f"""
    INSERT INTO trial ({TRIAL.names}) VALUES ({TRIAL.parameters()})
    ON CONFLICT (sweep_id, number) DO UPDATE SET {TRIAL.excluded}"""
SAVE_ARTIFACT = "UPDATE trial SET artifact = $2 WHERE job_id = $1"
FIND_ARTIFACT = "SELECT artifact FROM trial WHERE sweep_id = $1 AND number = $2"
# What was charged, what will be unless the attempt turns out to be free, and what attempts cost that run. A node may
# have been given by a clock that is ahead of ours.
SPENT = """
    SELECT coalesce(sum(CASE WHEN cost.is_ended AND NOT cost.is_charged THEN 0
                             WHEN cost.until IS NOT NULL THEN cost.cost
                             ELSE watch.price_per_hour * greatest(extract(epoch FROM $2 - watch.began_at), 0) / 3600
                        END), 0)
      FROM trial JOIN cost USING (job_id) LEFT JOIN watch USING (job_id, attempt)
     WHERE trial.sweep_id = $1"""
PRUNE_SWEEPS = """
    DELETE FROM sweep WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM sweep WHERE ended_at < now() - $1::interval LIMIT $2))"""

SMALLEST_USD = Decimal("0.000001")


async def add_sweep(conn: Connection, sweep: Sweep, *, now: datetime) -> None:
    await conn.execute(ADD_SWEEP, *SWEEP.values(sweep), now)


async def lock_sweep(conn: Connection, sweep_id: str) -> Sweep | None:
    """Return the sweep, about which nobody else decides until the commit."""
    row = await conn.fetchrow(LOCK_SWEEP, sweep_id)
    return None if row is None else read(Sweep, row)


async def save_sweep(conn: Connection, sweep: Sweep, *, ended_at: datetime | None) -> None:
    await conn.execute(SAVE_SWEEP, sweep.id, sweep.state, sweep.stop, ended_at)


async def list_limited_sweeps(conn: Connection) -> list[str]:
    """Return the ids of running sweeps with a budget."""
    return [row["id"] for row in await conn.fetch(LIMITED_SWEEPS)]


async def find_sweep_of(conn: Connection, job_id: str) -> str | None:
    """Return the sweep of which the job is a trial; None of most jobs."""
    sweep_id: str | None = await conn.fetchval(SWEEP_OF, job_id)
    return sweep_id


async def list_trials(conn: Connection, sweep_id: str) -> list[Trial]:
    return [read(Trial, row) for row in await conn.fetch(LIST_TRIALS, sweep_id)]


async def save_trial(conn: Connection, trial: Trial) -> None:
    await conn.execute(SAVE_TRIAL, *TRIAL.values(trial))


async def save_artifact(conn: Connection, event: JobEvaluating) -> None:
    """Keep what the trial has trained, in case it is the best one."""
    await conn.execute(SAVE_ARTIFACT, event.job_id, event.model_dump(mode="json"))


async def get_artifact(conn: Connection, sweep_id: str, number: int) -> Artifact:
    return Artifact.model_validate(await conn.fetchval(FIND_ARTIFACT, sweep_id, number))


async def find_spent(conn: Connection, sweep_id: str, *, now: datetime) -> Decimal:
    """Return what the sweep's trials have cost its tenant by now, in US dollars."""
    return Decimal(await conn.fetchval(SPENT, sweep_id, now)).quantize(SMALLEST_USD)
