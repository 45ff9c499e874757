"""Up to eight jobs beside each other: their curves, what they came to, and the settings that differ."""

from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import JsonValue

from services.gateway import job_readmodels
from services.gateway.deps import Context, Gateway
from services.gateway.errors import ApiError
from services.gateway.job_readmodels import JobFilter
from services.gateway.page import comparison, render, streams
from services.gateway.page.charts import AXES, CHARTS, Metric
from services.gateway.page.comparison import MAX_RUNS, ORDERS, Order
from services.gateway.page.sessions import Present, Visitor
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
    runs: Annotated[tuple[str, ...], Query()] = (),
    base: Annotated[str, Query(max_length=200)] = "",
    add: Annotated[str, Query(max_length=200)] = "",
    sort: Order = "chosen",
) -> HTMLResponse:
    """`runs`: ids of jobs, with commas between them or each by itself; `base`: the first of them."""
    tenant, database = visitor.principal.tenant, context.service.database
    job_ids = _chosen(",".join(runs), add)
    job_ids = [*dict.fromkeys(([base] if base in job_ids else []) + job_ids)]
    versions = await _versions(visitor, context, job_ids)
    shown = await _shown(visitor, context, job_ids, sort)
    now = database.now()
    offered = await job_readmodels.list_jobs(database, tenant, JobFilter(), after=None, limit=OFFERED)
    stream = (
        f"/compare/stream?{urlencode({'runs': ','.join(job_ids), 'sort': sort, 'last': versions}, safe=',')}"
    )
    return render.page(
        request,
        "compare.html.jinja",
        visitor,
        stream=stream if job_ids else None,
        axes=AXES,
        charts={name: CHARTS[name] for name in COMPARED},
        offered=[job_view(row, now=now) for row in offered if row.job_id not in job_ids],
        max_runs=MAX_RUNS,
        **shown,
    )


def _chosen(runs: str, add: str = "") -> list[str]:
    job_ids = [*dict.fromkeys(each.strip() for each in [*runs.split(","), add] if each.strip())]
    if len(job_ids) > MAX_RUNS:
        message = f"runs: found {len(job_ids)}, expected at most {MAX_RUNS}"
        raise ApiError(400, message, param="runs", code="invalid_value")
    return job_ids


async def _shown(
    visitor: Visitor, context: Gateway, job_ids: list[str], sort: Order = "chosen"
) -> dict[str, Any]:
    rows = [await job_of(visitor.principal, context, each) for each in job_ids]
    now = context.service.database.now()
    differing, num_equal = comparison.differences(rows) if rows else ([], 0)
    runs = comparison.runs(rows, [job_view(row, now=now) for row in rows])
    return {
        "runs": runs,
        "listed": comparison.in_order(runs, sort),
        "sort": sort,
        "orders": ORDERS,
        "job_ids": job_ids,
        "differing": differing,
        "num_equal": num_equal,
        "address": partial(_address, sort=sort),
    }


async def _versions(visitor: Visitor, context: Gateway, job_ids: list[str]) -> str:
    """Return what changes with each job, in their order."""
    tenant, database = visitor.principal.tenant, context.service.database
    versions = await job_readmodels.find_versions_of_jobs(database, tenant, job_ids)
    return "-".join(streams.version_of(versions.get(each))[:8] for each in job_ids)


@router.get("/compare/stream")
async def stream(
    request: Request,
    visitor: Present,
    context: Context,
    runs: Annotated[str, Query(max_length=2000)],
    sort: Order = "chosen",
) -> StreamingResponse:
    """What the jobs came to, and which of them have curves that go on."""
    job_ids = _chosen(runs)
    await _shown(visitor, context, job_ids)

    async def look(last: str) -> streams.Changes:
        versions = await _versions(visitor, context, job_ids)
        if versions == last:
            return streams.Changes(last)
        html = render.text("compare_jobs.html.jinja", **await _shown(visitor, context, job_ids, sort))
        before = last.split("-")
        before += [""] * (len(job_ids) - len(before))
        changed: list[JsonValue] = [
            job_id
            for job_id, known, version in zip(job_ids, before, versions.split("-"), strict=False)
            if known != version
        ]
        return streams.Changes(versions, (streams.part("compared-jobs", html), ("redraw", changed)))

    return streams.follow(request, context, visitor, look)


def _address(job_ids: list[str], sort: Order) -> str:
    asked = {"runs": ",".join(job_ids)} | ({"sort": sort} if sort != "chosen" else {})
    return f"/compare?{urlencode(asked, safe=',')}" if job_ids else "/compare"
