"""What looks wrong, or looked wrong, with jobs while they train."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from services.gateway.alerts import AlertFilter, has_alert, list_alerts
from services.gateway.deps import Context, invalid_cursor, parse_cursor
from services.gateway.page import render
from services.gateway.page.sessions import Present
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
    tenant, database = visitor.principal.tenant, context.service.database
    before = parse_cursor(after, "alert", param="after")
    if after and not await has_alert(database, tenant, before):
        raise invalid_cursor(after)
    rows = await list_alerts(database, tenant, AlertFilter(job or None), before=before, limit=ROWS + 1)
    shown = [alert_view(row) for row in rows[:ROWS]]
    following = f"/alerts?job={job or ''}&after={shown[-1].answer.id}" if len(rows) > ROWS else None
    return render.page(
        request, "alerts.html.jinja", visitor, alerts=shown, job=job, next=following, now=database.now()
    )
