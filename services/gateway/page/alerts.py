"""What looks wrong, or looked wrong, with jobs while they train, the curve around it, and which rules are muted."""

from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response, StreamingResponse

from schemas.alert import AlertRule
from services.gateway import alerts
from services.gateway.alerts import AlertFilter, AlertRow
from services.gateway.deps import Context, Gateway, invalid_cursor, parse_cursor
from services.gateway.errors import ApiError, not_found
from services.gateway.page import formats, render, streams
from services.gateway.page.charts import AXES, CHARTS, METRICS, mark_of_alert
from services.gateway.page.sessions import Present, Sender, Visitor
from services.gateway.page.views import alert_view, words_of
from services.gateway.requests import MuteRule
from services.gateway.routes import alerts as routes

router = APIRouter()

ROWS = 50
MUTES = 100
"""Mutes that are shown."""
AROUND = 100
"""Steps before and after an alert that its curve shows."""
SLOW = {AlertRule.PLATEAU, AlertRule.MEMORY_LEAK, AlertRule.COST_ABOVE_PLAN, AlertRule.VALIDATION_RISE}
"""Rules about what comes slowly: their curves begin with the run."""
UNITS = {
    "loss": ("loss", "valid_loss"),
    "gradient_norm": ("grad_norm",),
    "bytes": ("memory_bytes",),
    "tokens_per_second": ("tokens_per_second",),
}
"""Curves in which a limit of this unit is a line."""
HOURS = {"1": "1 hour", "8": "8 hours", "24": "1 day", "168": "7 days", "": "good"}
"""How long a rule may be muted for."""


@router.get("/alerts")
async def open_and_cleared(
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
    if after and not await alerts.has_alert(database, tenant, before):
        raise invalid_cursor(after)
    job_filter = AlertFilter(job or None)
    rows = await alerts.list_alerts(database, tenant, job_filter, before=before, limit=ROWS + 1)
    mutes = await alerts.list_mutes(database, tenant, limit=MUTES)
    shown = [alert_view(row) for row in rows[:ROWS]]
    of_job = quote(job or "", safe="")
    num_of_day = await alerts.count_alerts_of_day(database, tenant, job or None)
    return {
        "alerts": shown,
        "mutes": [(words_of(row.rule), row, alerts.mute_representation(row)) for row in mutes],
        "hours": HOURS,
        "job": job,
        "num_of_day": num_of_day,
        "num_rules": len(AlertRule) - sum(row.job_id == alerts.OF_ALL_JOBS for row in mutes),
        "next": f"/alerts?job={of_job}&after={shown[-1].answer.id}" if len(rows) > ROWS else None,
        "version": streams.version_of(rows, mutes, num_of_day),
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


@router.get("/alerts/{alert_id}")
async def one(request: Request, visitor: Present, context: Context, alert_id: str) -> Response:
    """An alert with the curve around it."""
    row = await _find(visitor, context, alert_id)
    metrics = METRICS[row.rule]
    drawn = UNITS.get(row.unit or "", ())
    return render.page(
        request,
        "alert.html.jinja",
        visitor,
        stream=f"/alerts/{alert_id}/stream",
        charts={name: CHARTS[name] for name in metrics},
        axes=AXES,
        limits={name: row.limit_value for name in metrics if name in drawn and row.limit_value is not None},
        first=0 if row.rule in SLOW else max(0, row.step - AROUND),
        last=row.step + AROUND,
        **_shown(row, context),
    )


async def _find(visitor: Visitor, context: Gateway, alert_id: str) -> AlertRow:
    tenant, database = visitor.principal.tenant, context.service.database
    try:
        number = parse_cursor(alert_id, "alert", param="alert_id")
    except ApiError as error:
        raise not_found("alert", alert_id) from error
    rows = await alerts.list_alerts(database, tenant, AlertFilter(number=number), before=None, limit=1)
    if not rows:
        raise not_found("alert", alert_id)
    return rows[0]


def _shown(row: AlertRow, context: Gateway) -> dict[str, Any]:
    return {
        "alert": alert_view(row),
        "marks": [mark_of_alert(row)],
        "hours": HOURS,
        "version": streams.version_of(row),
        "now": context.service.database.now(),
    }


@router.get("/alerts/{alert_id}/stream")
async def one_stream(
    request: Request, visitor: Present, context: Context, alert_id: str
) -> StreamingResponse:
    await _find(visitor, context, alert_id)

    async def show() -> dict[str, Any]:
        return _shown(await _find(visitor, context, alert_id), context)

    return streams.follow_part(
        request, context, visitor, show, element_id="alert", template="alert_parts.html.jinja"
    )


@router.post("/alerts/mutes")
async def mute(
    request: Request,
    sender: Sender,
    context: Context,
    rule: Annotated[AlertRule, Form()],
    job: Annotated[str, Form(max_length=100)] = "",
    hours: Annotated[str, Form(max_length=10)] = "",
) -> Response:
    """`job`: empty for all jobs. `hours`: empty for good."""
    now = context.service.database.now()
    until = now + timedelta(hours=int(hours)) if hours in HOURS and hours else None
    body = MuteRule(rule=rule, job_id=job or None, until=until)
    await routes.mute(sender.principal, context, body)
    ends = f"until {formats.moment(until)}" if until else "for good"
    message = f"Rule {words_of(rule)} of {job or 'all jobs'} is muted {ends}."
    return render.answer(request, message, back="/alerts")


@router.post("/alerts/mutes/remove")
async def unmute(
    request: Request, sender: Sender, context: Context, mute: Annotated[str, Form(max_length=200)]
) -> Response:
    """`mute`: its id."""
    await routes.unmute(sender.principal, context, mute)
    return render.answer(request, f"{mute} is not muted any more.", back="/alerts")
