"""Up to eight jobs beside each other: their curves, what they came to, and the settings that differ."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from services.gateway import job_readmodels
from services.gateway.deps import Context
from services.gateway.errors import ApiError
from services.gateway.job_readmodels import JobFilter
from services.gateway.page import comparison, render
from services.gateway.page.comparison import MAX_RUNS
from services.gateway.page.job import CHARTS, Metric
from services.gateway.page.sessions import Present
from services.gateway.page.views import job_view
from services.gateway.routes.jobs import job_of

router = APIRouter()

OFFERED = 50
COMPARED: tuple[Metric, ...] = ("loss", "valid_loss", "learning_rate", "tokens_per_second")


@router.get("/compare")
async def compare(
    request: Request,
    visitor: Present,
    context: Context,
    runs: Annotated[str, Query(max_length=2000)] = "",
    base: Annotated[str, Query(max_length=200)] = "",
    add: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    """`runs`: ids of jobs, with commas between them; `base`: the one that the others are held against."""
    tenant, database = visitor.principal.tenant, context.service.database
    job_ids = [each.strip() for each in [*runs.split(","), add] if each.strip()]
    job_ids = [*dict.fromkeys(([base] if base in job_ids else []) + job_ids)]
    if len(job_ids) > MAX_RUNS:
        message = f"runs: found {len(job_ids)}, expected at most {MAX_RUNS}"
        raise ApiError(400, message, param="runs", code="invalid_value")
    rows = [await job_of(visitor.principal, context, each) for each in job_ids]
    now = database.now()
    offered = await job_readmodels.list_jobs(database, tenant, JobFilter(), after=None, limit=OFFERED)
    differing, num_equal = comparison.differences(rows) if rows else ([], 0)
    return render.page(
        request,
        "compare.html.jinja",
        visitor,
        runs=comparison.runs(rows, [job_view(row, now=now) for row in rows]),
        job_ids=job_ids,
        differing=differing,
        num_equal=num_equal,
        charts={name: CHARTS[name] for name in COMPARED},
        offered=[job_view(row, now=now) for row in offered if row.job_id not in job_ids],
        max_runs=MAX_RUNS,
        address=_address,
    )


def _address(job_ids: list[str]) -> str:
    return f"/compare?{urlencode({'runs': ','.join(job_ids)}, safe=',')}" if job_ids else "/compare"
