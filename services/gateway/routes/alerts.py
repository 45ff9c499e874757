"""/v1/alerts: what looks wrong, or looked wrong, with jobs of the tenant while they train, and mutes of its rules."""

import hashlib
from typing import Annotated

from fastapi import APIRouter, Header, Query

from schemas.alert import AlertRule, MuteAlerts, UnmuteAlerts
from services.gateway.alert_responses import Alert, AlertMute, UnmutedRule
from services.gateway.alerts import (
    AlertFilter,
    find_mute,
    has_alert,
    list_alerts,
    list_mutes,
    mute_id,
    mute_representation,
    representation,
)
from services.gateway.deps import Caller, Context, invalid_cursor, page_size, parse_cursor
from services.gateway.errors import not_found, unavailable
from services.gateway.idempotency import answer_once
from services.gateway.model import JsonObject
from services.gateway.representations import page
from services.gateway.requests import MuteRule
from services.gateway.responses import Page
from services.gateway.routes.jobs import job_of

router = APIRouter()


@router.get("/alerts")
async def alerts(
    caller: Caller,
    context: Context,
    after: str | None = None,
    limit: int = 20,
    job_id: Annotated[str | None, Query(max_length=100)] = None,
    is_open: Annotated[bool | None, Query(alias="open")] = None,
    is_muted: Annotated[bool | None, Query(alias="muted")] = None,
) -> Page[Alert]:
    """List alerts, the newest first; with `open=true` those that are not cleared, with `muted=false` those that are
    not muted now, with `job_id` those of a job.
    """
    size = page_size(limit)
    before = parse_cursor(after, "alert", param="after")
    database = context.service.database
    if after and not await has_alert(database, caller.tenant, before):
        raise invalid_cursor(after)
    alert_filter = AlertFilter(job_id, is_open, is_muted)
    rows = await list_alerts(database, caller.tenant, alert_filter, before=before, limit=size + 1)
    return page([*map(representation, rows)], size=size)


@router.get("/alerts/mutes")
async def mutes(
    caller: Caller, context: Context, after: str | None = None, limit: int = 20
) -> Page[AlertMute]:
    """List mutes that have not ended, by rule and job."""
    size = page_size(limit)
    rule, _, job_id = (after or "").partition(":")
    rows = await list_mutes(context.service.database, caller.tenant, after=(rule, job_id), limit=size + 1)
    return page([*map(mute_representation, rows)], size=size)


@router.post("/alerts/mutes")
async def mute(
    caller: Caller,
    context: Context,
    body: MuteRule,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> AlertMute:
    """Notify nobody of alerts by this rule: no count, no webhook. Muted again, the newest request counts.

    They are raised as before, and a rule that pauses or stops the job does so, with its notice.
    """
    if body.job_id is not None:
        await job_of(caller, context, body.job_id)
    digest = hashlib.sha256(f"mute {body.model_dump_json()}".encode()).hexdigest()

    async def ask() -> JsonObject:
        command = MuteAlerts(tenant=caller.tenant, muted_by=_who(caller), **body.model_dump())
        return {"command_id": (await context.send(unit, caller.tenant, command))[0]}

    async with context.service.unit() as unit:
        answer = await answer_once(unit.conn, caller.tenant, idempotency_key, digest, ask)
    await context.outcome_of(str(answer.body["command_id"]))
    row = await find_mute(context.service.database, caller.tenant, body.rule, body.job_id)
    if row is None:
        raise unavailable(
            f"mute of {body.rule.value} is asked for but not decided yet", code="not_decided_yet"
        )
    return mute_representation(row)


@router.delete("/alerts/mutes/{mute}")
async def unmute(caller: Caller, context: Context, mute: str) -> UnmutedRule:
    """Notify of alerts by this rule again. `mute`: the rule, or rule and job as in `loss_spike:ftjob-1`."""
    rule_name, _, job_id = mute.partition(":")
    rule = next((each for each in AlertRule if each.value == rule_name), None)
    if rule is None:
        raise not_found("alert mute", mute, param="mute")
    row = await find_mute(context.service.database, caller.tenant, rule, job_id)
    if row is None:
        raise not_found("alert mute", mute, param="mute")
    command = UnmuteAlerts(
        tenant=caller.tenant, rule=row.rule, job_id=row.job_id or None, unmuted_by=_who(caller)
    )
    async with context.service.unit() as unit:
        command_id = (await context.send(unit, caller.tenant, command))[0]
    is_answered = await context.outcome_of(command_id) is not None
    return UnmutedRule(id=mute_id(row.rule, row.job_id), object="alert.mute", deleted=is_answered)


def _who(caller: Caller) -> str:
    return f"{caller.key_id} of tenant {caller.tenant}"
