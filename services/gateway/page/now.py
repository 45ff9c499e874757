"""What happens now: what waits and why, what runs, where there is room, and what was deployed last."""

import hashlib
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from schemas.lifecycle import JobState
from services.gateway import job_readmodels, readmodels
from services.gateway.alerts import AlertFilter, list_alerts
from services.gateway.deps import Context, Gateway
from services.gateway.job_readmodels import JobFilter
from services.gateway.page import problems, render, search, sessions, streams
from services.gateway.page.sessions import Visitor
from services.gateway.page.views import alert_view, job_view, route_view

router = APIRouter()

WAITING = (JobState.VALIDATING, JobState.QUEUED, JobState.PAUSED)
RUNNING = (JobState.PROVISIONING, JobState.RUNNING, JobState.STOPPING, JobState.EVALUATING)
ROWS = 20
ENDED = 8
DEPLOYED = 8
ALERTS = 8


@router.get("/")
async def now(request: Request, context: Context) -> Response:
    """For a browser alone: programs find nothing here."""
    if not problems.wants_html(request):
        raise HTTPException(404)
    visitor = await sessions.visitor(request, context)
    shown = await _shown(visitor, context)
    return render.page(request, "now.html.jinja", visitor, stream="/now/stream", **shown)


async def _shown(visitor: Visitor, context: Gateway) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant, context.service.database
    present = database.now()

    async def listed(
        states: tuple[JobState, ...], limit: int, order: job_readmodels.JobOrder = "created"
    ) -> Any:
        job_filter = JobFilter(states=states)
        rows = await job_readmodels.list_jobs(
            database, tenant, job_filter, order=order, after=None, limit=limit
        )
        return [job_view(row, now=present) for row in rows]

    counts = await job_readmodels.count_jobs(database, tenant, JobFilter())
    waiting = await job_readmodels.list_waiting(database, tenant, WAITING, limit=ROWS)
    ended = await listed((*search.GROUPS["succeeded"], *search.GROUPS["failed"]), ENDED, "ended")
    are_open = AlertFilter(is_open=True, is_muted=False)
    open_alerts = await list_alerts(database, tenant, are_open, before=None, limit=ALERTS)
    return {
        "alerts": [alert_view(row) for row in open_alerts],
        "waiting": [job_view(row, now=present) for row in waiting],
        "num_waiting": sum(counts.get(state, 0) for state in WAITING),
        "running": await listed(RUNNING, ROWS),
        "num_running": sum(counts.get(state, 0) for state in RUNNING),
        "ended": ended,
        "num_jobs": sum(counts.values()),
        "pools": await readmodels.list_pools(database),
        "routes": [
            route_view(row)
            for row in await job_readmodels.list_latest_routes(database, tenant, limit=DEPLOYED)
        ],
        "now": present,
    }


@router.get("/now/stream")
async def stream(request: Request, visitor: sessions.Present, context: Context) -> StreamingResponse:
    """The whole of the page where anything of it is other than before; ages alone are no change."""

    async def look(last: str) -> streams.Changes:
        version = await job_readmodels.find_version_of_tenant(
            context.service.database, visitor.principal.tenant, [*WAITING, *RUNNING]
        )
        present = hashlib.sha256(version.encode()).hexdigest()[:16]
        if present == last:
            return streams.Changes(last)
        html = render.text("now_parts.html.jinja", **await _shown(visitor, context))
        return streams.Changes(present, (streams.part("now", html),))

    return streams.follow(request, context, visitor, look)
