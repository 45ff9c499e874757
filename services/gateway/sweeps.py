"""Sweeps of a tenant and their trials, as requests ask for them; `projections` writes them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Literal

from schemas.sweep import Parameters, SubmitSweep, SweepSpec, SweepState, TrialState
from services.gateway import responses
from services.gateway.filters import EVERYTHING, ListFilter, Order
from services.gateway.model import Row
from services.gateway.representations import unix
from services.gateway.store import find, select
from shared.postgres.database import Connection, Database


class SweepRow(Row):
    number: int
    sweep_id: str
    name: str
    dataset_id: str
    spec: SweepSpec
    state: SweepState
    best: int | None
    message: str
    created_at: datetime
    finished_at: datetime | None


class TrialRow(Row):
    sweep_id: str
    number: int
    job_id: str
    parameters: Parameters
    state: TrialState
    valid_loss: float | None
    duplicate_of: int | None
    message: str
    cost: Decimal
    fine_tuned_model: str | None
    verdict: str | None
    newest_loss: float | None
    """Newest validation loss of one that runs."""
    progress: float | None
    """How much of its run is trained; None before it is queued."""


SWEEP_COLUMNS = "number, sweep_id, name, dataset_id, spec, state, best, message, created_at, finished_at"
FIND_SWEEP = f"SELECT {SWEEP_COLUMNS} FROM sweep WHERE sweep_id = $1 AND tenant = $2"
MATCHING_SWEEPS = """
      FROM sweep
     WHERE tenant = $1 AND ($2::text[] IS NULL OR state = ANY ($2))
       AND ($3::text[] IS NULL OR concat_ws(' ', sweep_id, name, spec #>> '{job,base_model}') ILIKE ALL ($3))"""
SweepOrder = Literal["created", "loss", "cost"]
SWEEP_ORDERS: Mapping[SweepOrder, Order] = {
    "created": Order("number"),
    "loss": Order(
        """coalesce((SELECT min(valid_loss) FROM trial
                      WHERE trial.sweep_id = sweep.sweep_id AND trial.state = 'completed'), 'infinity')""",
        is_rising=True,
    ),
    "cost": Order(
        """coalesce((SELECT sum(cost) FROM trial JOIN job USING (job_id) WHERE trial.sweep_id = sweep.sweep_id), 0)"""
    ),
}


def sweeps_by(name: SweepOrder) -> str:
    order = SWEEP_ORDERS[name]
    return f"""
        SELECT {SWEEP_COLUMNS} {MATCHING_SWEEPS} AND {order.after("$4", "sweep", "sweep_id")}
         {order.by("sweep_id")} LIMIT $5"""


LIST_SWEEPS = sweeps_by("created")
LIST_TRIALS = """
    SELECT sweep_id, trial.number, job_id, parameters, trial.state, trial.valid_loss, trial.duplicate_of,
           trial.message, coalesce(cost, 0) AS cost, fine_tuned_model, job.valid_loss AS newest_loss,
           greatest(last_step, last_recorded)::float8 / nullif(num_steps, 0) AS progress,
           (SELECT outcome FROM evaluation WHERE evaluation.job_id = trial.job_id
             ORDER BY outcome = 'running', evaluation.number DESC LIMIT 1) AS verdict
      FROM trial LEFT JOIN job USING (job_id)
     WHERE sweep_id = ANY ($1) AND trial.tenant = $2 ORDER BY sweep_id, trial.number"""
ADD_SWEEP = """
    INSERT INTO sweep (sweep_id, tenant, name, dataset_id, spec, created_at) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (sweep_id) DO NOTHING"""
# The version of what a page shows of a sweep.
SWEEP_VERSION = """
    SELECT concat_ws('/', sweep.xmin,
        (SELECT string_agg(concat_ws('.', trial.xmin, job.xmin), ' ' ORDER BY trial.number)
           FROM trial LEFT JOIN job USING (job_id) WHERE trial.sweep_id = sweep.sweep_id))
      FROM sweep WHERE sweep_id = $1 AND tenant = $2"""


def version_by(name: SweepOrder) -> str:
    """Of the first sweeps in this order; trials change only while their sweep runs."""
    by = SWEEP_ORDERS[name].by("sweep_id")
    return f"""
        SELECT string_agg(concat_ws('/', sweep.xmin, trials.newest), ' ' ORDER BY sweep.number)
          FROM (SELECT sweep_id, number, state, xmin {MATCHING_SWEEPS} {by} LIMIT $4) AS sweep
          LEFT JOIN LATERAL (
               SELECT concat_ws('.', max(trial.xmin::text::bigint), max(job.xmin::text::bigint)) AS newest
                 FROM trial LEFT JOIN job USING (job_id)
                WHERE trial.sweep_id = sweep.sweep_id AND sweep.state IN ('running', 'stopping')) AS trials ON true"""


LIST_VERSION = version_by("created")


async def add_sweep(conn: Connection, command: SubmitSweep, name: str, *, now: datetime) -> None:
    """Show the sweep before the tracker's SweepSubmitted has come round."""
    spec = command.spec.model_dump(mode="json")
    await conn.execute(ADD_SWEEP, command.sweep_id, command.tenant, name, command.dataset_id, spec, now)


async def find_sweep(source: Connection | Database, sweep_id: str, tenant: str) -> SweepRow | None:
    return await find(SweepRow, source, FIND_SWEEP, sweep_id, tenant)


async def list_sweeps(
    database: Database,
    tenant: str,
    *,
    after: str | None,
    limit: int,
    only: ListFilter = EVERYTHING,
    order: SweepOrder = "created",
) -> list[SweepRow]:
    """Words of `only` are searched in the id, the name and the base model's name."""
    return await select(SweepRow, database, sweeps_by(order), tenant, *only.values, after, limit)


async def list_trials(source: Connection | Database, sweep_ids: Sequence[str], tenant: str) -> list[TrialRow]:
    """Return the trials of these sweeps, of each in the order of their numbers."""
    return await select(TrialRow, source, LIST_TRIALS, sweep_ids, tenant)


async def find_list_version(
    database: Database, tenant: str, *, limit: int, only: ListFilter, order: SweepOrder
) -> str:
    """Return a text that changes whenever what a list shows of its first sweeps does."""
    version: str | None = await database.fetchval(version_by(order), tenant, *only.values, limit)
    return version or ""


async def find_version(database: Database, sweep_id: str, tenant: str) -> str | None:
    """Return a text that changes whenever the sweep, a trial or a trial's job does."""
    version: str | None = await database.fetchval(SWEEP_VERSION, sweep_id, tenant)
    return version


def best_of(row: SweepRow, trials: Sequence[TrialRow]) -> TrialRow | None:
    """Return the best trial, or while trials run the best so far: the lowest loss, the earliest of equal ones."""
    if row.best is not None:
        return next((each for each in trials if each.number == row.best), None)
    trained = [each for each in trials if each.state is TrialState.COMPLETED and each.valid_loss is not None]
    return min(trained, key=lambda each: (each.valid_loss, each.number), default=None)


def trial(row: TrialRow) -> responses.Trial:
    return responses.Trial(
        number=row.number,
        state=row.state,
        job_id=None if row.state is TrialState.DUPLICATE else row.job_id,
        parameters=row.parameters,
        valid_loss=row.valid_loss,
        duplicate_of=row.duplicate_of,
        cost_usd=str(row.cost),
        message=row.message,
    )


def representation(row: SweepRow, trials: Sequence[TrialRow], *, has_trials: bool = False) -> responses.Sweep:
    best, spec = best_of(row, trials), row.spec
    return responses.Sweep(
        id=row.sweep_id,
        object="sweep",
        created_at=unix(row.created_at),
        finished_at=row.finished_at and unix(row.finished_at),
        name=row.name,
        state=row.state,
        model=spec.job.base_model,
        search=responses.SearchFields(
            algorithm=spec.algorithm,
            parameters=spec.parameters,
            num_trials=spec.most_trials,
            concurrency=spec.concurrency,
            seed=spec.seed,
            pruning=spec.pruning,
            max_cost=None if spec.max_cost is None else str(spec.max_cost),
            max_failed_trials=spec.max_failed_trials,
        ),
        trials_by_state=dict(Counter(each.state.value for each in trials)),
        best=trial(best) if best else None,
        fine_tuned_model=best.fine_tuned_model if best else None,
        gate=(best.verdict or "") if best else "",
        cost_usd=str(sum((each.cost for each in trials), Decimal(0))),
        message=row.message,
        trials=tuple(map(trial, trials)) if has_trials else (),
    )
