"""What looks wrong, or looked wrong, with jobs while they train."""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from schemas.alert import AlertRule
from services.gateway.alerts import AlertFilter, has_alert, list_alerts
from services.gateway.deps import Context, Gateway, invalid_cursor, parse_cursor
from services.gateway.page import render, streams
from services.gateway.page.sessions import Present, Visitor
from services.gateway.page.views import alert_view

router = APIRouter()

ROWS = 50


@router.get("/alerts")
async def alerts(
    request: Request,
    visitor: Present,
    context: Context,
    job: Annotated[str | None, Query(max_length=100)] = None,
    after: str | None = None,
) -> Response:
    """Open and cleared ones, the newest first."""
    shown = await _alerts(visitor, context, job, after)
    stream = None if after else f"/alerts/stream?job={quote(job or '', safe='')}"
    return render.page(request, "alerts.html.jinja", visitor, stream=stream, **shown)


async def _alerts(visitor: Visitor, context: Gateway, job: str | None, after: str | None) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant, context.service.database
    before = parse_cursor(after, "alert", param="after")
    if after and not await has_alert(database, tenant, before):
        raise invalid_cursor(after)
    rows = await list_alerts(database, tenant, AlertFilter(job or None), before=before, limit=ROWS + 1)
    shown = [alert_view(row) for row in rows[:ROWS]]
    of_job = quote(job or "", safe="")
    return {
        "alerts": shown,
        "job": job,
        "num_rules": len(AlertRule),
        "next": f"/alerts?job={of_job}&after={shown[-1].answer.id}" if len(rows) > ROWS else None,
        "version": streams.version_of(rows),
        "now": database.now(),
    }


@router.get("/alerts/stream")
async def alerts_stream(
    request: Request,
    visitor: Present,
    context: Context,
    job: Annotated[str | None, Query(max_length=100)] = None,
) -> StreamingResponse:
    async def show() -> dict[str, Any]:
        return await _alerts(visitor, context, job, None)

    return streams.follow_part(
        request, context, visitor, show, element_id="alerts", template="alerts_parts.html.jinja"
    )
