"""/v1/alerts: what looks wrong, or looked wrong, with jobs of the tenant while they train."""

from typing import Annotated

from fastapi import APIRouter, Query

from services.gateway.alerts import AlertFilter, has_alert, list_alerts, representation
from services.gateway.deps import Caller, Context, invalid_cursor, page_size, parse_cursor
from services.gateway.representations import page
from services.gateway.responses import Alert, Page

router = APIRouter()


@router.get("/alerts")
async def alerts(
    caller: Caller,
    context: Context,
    after: str | None = None,
    limit: int = 20,
    job_id: Annotated[str | None, Query(max_length=100)] = None,
    is_open: Annotated[bool | None, Query(alias="open")] = None,
) -> Page[Alert]:
    """List alerts, the newest first; with `open=true` those that are not cleared, with `job_id` those of a job."""
    size = page_size(limit)
    before = parse_cursor(after, "alert", param="after")
    database = context.service.database
    if after and not await has_alert(database, caller.tenant, before):
        raise invalid_cursor(after)
    alert_filter = AlertFilter(job_id, is_open)
    rows = await list_alerts(database, caller.tenant, alert_filter, before=before, limit=size + 1)
    return page([*map(representation, rows)], size=size)
