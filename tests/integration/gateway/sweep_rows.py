"""A sweep with its trials and their jobs for the page to show, as the rows that their events would have left."""

import json
import math
from random import Random

from schemas.sweep import Choices, PruningSpec, Range, SweepSpec
from services.gateway.sweeps import ADD_SWEEP
from shared.clock import utc_now
from tests.builders import a_file_ref
from tests.integration.gateway.world import World, mark

ADD_TRIAL = """
    INSERT INTO trial (sweep_id, number, tenant, job_id, parameters, state, valid_loss, duplicate_of, message)
    VALUES ($1, $2, $3, $4, $5::jsonb, $6, $7, $8, $9)"""
ADD_JOB = """
    INSERT INTO job (job_id, tenant, state, spec, num_steps, last_step, cost, created_at, finished_at)
    VALUES ($1, $2, $3, $4::jsonb, 600, $5, $6, now(), $7)"""


async def add_sweep(world: World, tenant: str, *, num_trials: int, state: str, name: str = "rates") -> str:
    """Every eighth trial is a duplicate, of the others every third is pruned; of one that runs the last does too."""
    job = world.spec(training_file=a_file_ref(), validation_file=a_file_ref("valid.jsonl"))
    spec = SweepSpec(
        job=job,
        parameters={
            "learning_rate": Range(low=1e-5, high=1e-2, log=True),
            "lora.rank": Choices(choices=(4, 8, 16, 32)),
            "warmup_ratio": Range(low=0.0, high=0.2),
        },
        num_trials=40,
        concurrency=4,
        pruning=PruningSpec(),
        max_cost="25.00",
    )
    sweep_id, random = f"sweep-{mark()}", Random(7)
    row = (sweep_id, tenant, name, f"ds-{sweep_id}", spec.model_dump_json(), utc_now())
    await world.db.execute(ADD_SWEEP, *row)
    best: tuple[float, int] | None = None
    for number in range(num_trials):
        rate, rank = float(f"{10 ** random.uniform(-5, -2):.3g}"), random.choice((4, 8, 16, 32))
        warmup = float(f"{random.uniform(0, 0.2):.3g}")
        loss = 1.2 + 0.3 * (math.log10(rate) + 3.5) ** 2 + 1.2 / rank + random.gauss(0, 0.03)
        kind = "duplicate" if number % 8 == 7 else "pruned" if number % 3 == 2 else "completed"
        if state == "running" and number == num_trials - 1:
            kind = "running"
        job_id = f"ftjob-{sweep_id}-{number}"
        parameters = {"learning_rate": rate, "lora.rank": rank, "warmup_ratio": warmup}
        measured = loss if kind in ("completed", "pruned") else None
        message = {
            "pruned": "at 30% its lowest validation loss was 2.31, the median of 6 earlier trials 2.02",
            "duplicate": "the configuration of trial 3",
        }.get(kind, "")
        twin = 3 if kind == "duplicate" else None
        values = (sweep_id, number, tenant, job_id, parameters, kind, measured, twin, message)
        await world.db.execute(ADD_TRIAL, *values[:4], json.dumps(parameters), *values[5:])
        if kind != "duplicate":
            states = {"completed": "succeeded", "pruned": "cancelled", "running": "running"}
            spec_of = job.model_dump_json()
            finished = None if kind == "running" else utc_now()
            await world.db.execute(ADD_JOB, job_id, tenant, states[kind], spec_of, 270, 0.42, finished)
        if kind == "completed" and (best is None or loss < best[0]):
            best = (loss, number)
    if state == "succeeded" and best is not None:
        message = f"all trials have ended; trial {best[1]} is the best one"
        await world.db.execute(
            "UPDATE sweep SET state = $2, best = $3, best_valid_loss = $4, message = $5, finished_at = now()"
            " WHERE sweep_id = $1",
            *(sweep_id, state, best[1], best[0], message),
        )
    return sweep_id
