"""How long attempts took, as rows: what times and costs of later jobs are estimated from."""

from collections.abc import Sequence

from schemas.artifacts import DatasetCounts
from schemas.cost import CostAccrued
from schemas.node import PoolCapacityChanged
from schemas.specification import JobSpec, Resources
from services.gateway import readmodels, store
from services.gateway.memory import Base
from services.gateway.model import JobCourse
from services.gateway.store import Source
from services.gateway.training_time import (
    TOKENS_PER_BYTE,
    AskedStage,
    AttemptTime,
    EstimatedTime,
    Range,
    RecordedAttempt,
    estimate,
    flops_of,
    time_of,
)
from shared.messaging.unit import Unit
from shared.postgres.rows import Columns, read

READ = 100
"""Attempts that are looked at."""
TIMES = Columns(", ".join(AttemptTime.model_fields))
RECORDED = """
    SELECT count(*) AS steps, coalesce(sum((metrics ->> 'num_tokens')::bigint), 0)::bigint AS tokens,
           min(step) AS first_step, max(step) AS last_step,
           extract(epoch FROM max((metrics ->> 'time')::timestamptz) - min((metrics ->> 'time')::timestamptz))::float8
               AS elapsed
      FROM step WHERE job_id = $1 AND attempt = $2"""
SAVE = f"""
    INSERT INTO attempt_time (job_id, attempt, {TIMES.names}) VALUES ($1, $2, {TIMES.parameters(3)})
    ON CONFLICT (job_id, attempt) DO NOTHING"""
ENDED = f"""
    SELECT {TIMES.selected} FROM attempt_time WHERE pool = $1 ORDER BY ended_at DESC LIMIT {READ}"""
ENDED_ON_BASE = f"""
    SELECT {TIMES.selected} FROM attempt_time
     WHERE pool = $1 AND base_sha = $2 ORDER BY ended_at DESC LIMIT {READ}"""
TOKENS_PER_BYTE_OF = """
    SELECT percentile_cont(ARRAY[0.1, 0.5, 0.9]) WITHIN GROUP (ORDER BY tokens / size_bytes)
      FROM (SELECT (detail -> 'counts' ->> 'tokens')::float8 AS tokens, file.size_bytes
              FROM dataset JOIN LATERAL (SELECT size_bytes FROM file
                                          WHERE sha256 = detail -> 'files' ->> 'training' LIMIT 1) AS file ON true
             WHERE tenant = $1 AND dataset.state = 'ready' AND detail ->> 'base_sha' = $2 AND size_bytes > 0
             ORDER BY created_at DESC LIMIT 20) AS newest"""


async def note(unit: Unit, event: CostAccrued) -> None:
    """Keep how long an attempt took that did not fail, where its steps say it. Those of elastic jobs, whose
    attempts differ in size, are left out."""
    job = await readmodels.find_job(unit.conn, event.job_id, event.tenant)
    if job is None or event.failure_class is not None or not event.pool or not event.device_seconds:
        return
    spec = job.spec
    resources = Resources.model_validate(spec.resources)
    if resources.min_nodes is not None:
        return
    row = await unit.conn.fetchrow(RECORDED, event.job_id, event.attempt)
    assert row is not None, "it has no GROUP BY"
    recorded = read(RecordedAttempt, row)
    base = await readmodels.find_base_detail(unit.conn, spec.base_model or "", spec.base_sha or "")
    if base is None or recorded.first_step is None:
        return
    course = JobCourse(num_steps=job.num_steps, spec=spec, stage_plans=job.stage_plans)
    is_whole = recorded.first_step == 1 and not job.stages and recorded.last_step == job.num_steps
    estimated = next((each for each in job.estimated_times if each.pool == event.pool), None)
    time = time_of(
        recorded,
        pool=event.pool,
        base_sha=spec.base_sha or "",
        recipe=course.recipe_at(recorded.first_step),
        num_parameters=base.num_parameters,
        num_devices=resources.num_devices,
        device_seconds=event.device_seconds,
        estimated_seconds=estimated.seconds.expected if estimated and is_whole else None,
        ended_at=event.until,
    )
    if time is not None:
        await unit.conn.execute(SAVE, event.job_id, event.attempt, *TIMES.values(time))


async def estimated(
    source: Source,
    spec: JobSpec,
    tenant: str,
    *,
    base: Base,
    counts: Sequence[DatasetCounts | None],
    pools: Sequence[PoolCapacityChanged],
) -> tuple[EstimatedTime, ...]:
    """Estimate what the job needs in each of the pools in which attempts have ended.

    counts: of each stage's dataset; None where it is not validated: then its file's size says how many tokens it has.
    """
    ended_in = {pool: await _ended(source, pool.pool, spec.base_sha) for pool in pools}
    if not any(ended_in.values()):
        return ()
    stages = [
        AskedStage(
            base_sha=spec.base_sha,
            method=stage.recipe.method.value,
            num_devices=spec.resources.num_devices,
            flops=await _flops_of(source, stage, tenant, base, known),
        )
        for stage, known in zip(spec.by_stage, counts, strict=True)
    ]
    estimates = [estimate(stages, pool, ended) for pool, ended in ended_in.items()]
    return tuple(each for each in estimates if each is not None)


async def _ended(source: Source, pool: str, base_sha: str) -> list[AttemptTime]:
    """Return attempts on the base model where there are any, else those on others."""
    rows = await source.fetch(ENDED_ON_BASE, pool, base_sha) or await source.fetch(ENDED, pool)
    return [read(AttemptTime, row) for row in rows]


async def _flops_of(
    source: Source, stage: JobSpec, tenant: str, base: Base, known: DatasetCounts | None
) -> Range:
    if known is not None:
        tokens, rows, windows = Range.exactly(known.tokens), known.rows, known.windows
    else:
        file = await store.find_file(source, stage.training_file.file_id, tenant)
        tenths = await source.fetchval(TOKENS_PER_BYTE_OF, tenant, stage.base_sha)
        tokens = (Range(*tenths) if tenths else TOKENS_PER_BYTE) * stage.training_file.size_bytes
        rows, windows = (file.num_rows if file and file.num_rows else 1), 1
    return flops_of(
        stage.recipe, num_parameters=base.num_parameters, tokens=tokens, rows=rows, windows=windows
    )
