"""A job: its curves, timeline, logs, checkpoints, settings, cost and events, live, and what may be done with it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from pydantic import JsonValue

from schemas.lifecycle import TERMINAL
from services.gateway import (
    alerts,
    costs,
    job_readmodels,
    job_responses,
    readmodels,
    recent_events,
    representations,
)
from services.gateway.alerts import AlertFilter
from services.gateway.deps import Caller, Context, Gateway, parse_cursor
from services.gateway.errors import not_found
from services.gateway.page import attempts, charts, checkpoints, curves, formats, render, streams
from services.gateway.page.charts import AXES, CHARTS, Axis, Metric
from services.gateway.page.events import link_of
from services.gateway.page.job_settings import groups_of
from services.gateway.page.sessions import Present, Sender, Visitor
from services.gateway.page.views import Action, job_view
from services.gateway.recent_events import EventFilter
from services.gateway.routes import jobs, progress
from services.gateway.routes.jobs import job_of

router = APIRouter()

Tab = Literal["curves", "timeline", "logs", "checkpoints", "settings", "cost", "events"]
TABS: tuple[Tab, ...] = ("curves", "timeline", "logs", "checkpoints", "settings", "cost", "events")
EVENTS = 100
ATTEMPTS = 200
Types = Annotated[list[str], Query(alias="type", max_length=100)]
"""Of events: those to show; empty for all."""
STEPS_AT_ONCE = 2_000
MAX_PIXELS = 4_000
COMMANDS: Mapping[Action, Callable[..., Awaitable[job_responses.Job]]] = {
    "pause": jobs.pause,
    "resume": jobs.resume,
    "cancel": jobs.cancel,
    "retry": jobs.retry,
    "continue": partial(jobs.retry, from_checkpoint=True),
}
DONE: Mapping[Action, str] = {
    "pause": "Pause asked. It saves a checkpoint first, which may take a while.",
    "resume": "Resume asked. The job waits for its place in the queue.",
    "cancel": "Cancel asked.",
    "retry": "Retry asked.",
    "continue": "Retry asked, from the newest checkpoint.",
}


@router.get("/jobs/{job_id}/stream")
async def stream(
    request: Request,
    visitor: Present,
    context: Context,
    job_id: str,
    tab: Tab = "curves",
    step: int = 0,
    types: Types = [],  # noqa: B006, FastAPI copies it
    after: str | None = None,
) -> StreamingResponse:
    """`step`: the last one that the page draws by itself; afterwards the id of the last event has it. `after`: the
    checkpoint that a page of the tab Checkpoints begins after."""
    caller, database = visitor.principal, context.service.database
    await job_of(caller, context, job_id)

    async def look(last: str) -> streams.Changes:
        known, event_id, last_step, validated, known_marks = _parsed(last, step)
        version = await job_readmodels.find_job_version(database, job_id, caller.tenant) or ""
        if version == known:
            return streams.Changes(last)
        parts = await _head(visitor, context, job_id)
        if tab == "curves":
            steps, last_step = await _new_steps(context, job_id, last_step)
            newest = await job_readmodels.find_newest_validation(database, job_id, after=validated)
            if newest is not None:
                validated = newest
                steps = [*steps, ("validated", newest)]
            parts += steps
            picture, newest_event = await _attempts(context, job_id)
            if newest_event != event_id:
                parts.append(_drawn(picture))
                event_id = newest_event
            marked = await _marks(caller, context, job_id)
            if (marks := streams.version_of(marked)[:8]) != known_marks:
                html = render.text("job_marks.html.jinja", marked=marked, job_id=job_id)
                parts.append(streams.part("job-marks", html))
                known_marks = marks
        elif tab == "timeline":
            picture, _ = await _attempts(context, job_id)
            parts.append(_drawn(picture))
            events, event_id = await _new_events(context, job_id, event_id, types)
            parts += events
        elif tab == "events":
            events, event_id = await _new_records(caller, context, job_id, event_id)
            parts += events
        elif tab == "cost":
            html = render.text("job_cost.html.jinja", **await _cost(caller, context, job_id))
            parts.append(streams.part("cost", html))
        elif tab == "checkpoints":
            written = await checkpoints.shown(caller, context, job_id, after)
            values = {"visitor": visitor, "now": database.now(), "job_id": job_id}
            html = render.text("job_checkpoints.html.jinja", **values, **written)
            parts.append(streams.part("checkpoints", html))
        known = f"{version}/{max(event_id, 0)}/{last_step}/{validated}/{known_marks}"
        return streams.Changes(known, tuple(parts))

    return streams.follow(request, context, visitor, look)


def _parsed(last: str, step: int) -> tuple[str, int, int, int, str]:
    """Return the version of the job, the last event, step and validated step that the page has, and which marks."""
    version, *rest = last.split("/")
    if len(rest) != 4 or not all(map(str.isdecimal, rest[:3])):
        return "", -1, step, 0, ""
    event_id, last_step, validated = map(int, rest[:3])
    return version, event_id, last_step, validated, rest[3]


async def _head(visitor: Visitor, context: Gateway, job_id: str) -> list[streams.Event]:
    now = context.service.database.now()
    view = job_view(await job_of(visitor.principal, context, job_id), now=now)
    values = {"job": view, "visitor": visitor, "now": now}
    return [
        streams.part("job-head", render.text("job_head.html.jinja", **values)),
        streams.part("job-commands", render.text("job_commands.html.jinja", **values)),
    ]


async def _new_steps(context: Gateway, job_id: str, last: int) -> tuple[list[streams.Event], int]:
    """Steps after the last one; where there are more than a stream should carry, the page asks for curves again."""
    database = context.service.database
    rows = await readmodels.list_steps(database, job_id, after=last, limit=STEPS_AT_ONCE)
    if not rows:
        return [], last
    if len(rows) == STEPS_AT_ONCE:
        return [("redraw", None)], max(rows[-1].step, await _last_step(context, job_id))
    points: list[JsonValue] = [_point(representations.recorded_step(row)) for row in rows]
    return [("steps", points)], rows[-1].step


async def _last_step(context: Gateway, job_id: str) -> int:
    recorded = await readmodels.recorded_steps(context.service.database, job_id)
    return recorded.last_recorded if recorded else 0


def _point(step: job_responses.RecordedStep) -> dict[str, JsonValue]:
    valid = step.valid_loss if step.full_valid_loss is None else step.full_valid_loss
    point: dict[str, JsonValue] = {"step": step.step, "attempt": step.attempt, "valid_loss": valid}
    point |= {"done_at": step.time.timestamp(), "num_tokens": step.num_tokens}
    return point | {name: getattr(step, name) for name in CHARTS if name != "valid_loss"}


async def _new_events(
    context: Gateway, job_id: str, last: int, types: Sequence[str]
) -> tuple[list[streams.Event], int]:
    """Events after the last one; for a page that has just been loaded, where it stands."""
    database = context.service.database
    if last < 0:
        newest = await readmodels.events_before(database, job_id, before=None, limit=1)
        return [], newest[0].id if newest else 0
    rows = await readmodels.events_after(database, job_id, after=last)
    if not rows:
        return [], last
    shown = [row for row in reversed(rows) if not types or row.type in types]
    html = render.text("job_events.html.jinja", events=shown, now=database.now())
    return [("events", {"html": html, "count": len(shown)})] if shown else [], rows[-1].id


async def _new_records(
    caller: Caller, context: Gateway, job_id: str, last: int
) -> tuple[list[streams.Event], int]:
    """Events with records after the last one, and those before it that may have come late."""
    database = context.service.database
    if last < 0:
        return [], await recent_events.find_newest(database, caller.tenant)
    rows = await recent_events.list_newer(
        database, caller.tenant, EventFilter(subject=job_id), after=last, limit=EVENTS
    )
    if not rows:
        return [], last
    html = render.text("event_rows.html.jinja", events=rows, link_of=link_of)
    return [("events", {"html": html, "count": len(rows)})], max(last, rows[0].number)


@router.get("/jobs/{job_id}/curve")
async def curve(
    request: Request,
    visitor: Present,
    context: Context,
    job_id: str,
    metric: Metric,
    pixels: Annotated[int, Query(ge=10, le=MAX_PIXELS)] = 800,
    weight: Annotated[float, Query(ge=0, le=curves.MAX_WEIGHT)] = 0.0,
    first: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    last: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    x: Axis = "step",
) -> Response:
    """`first`, `last`: steps, and buckets are of steps, whatever the curve is drawn over."""
    await job_of(visitor.principal, context, job_id)
    points = await job_readmodels.find_curve(context.service.database, job_id, metric)
    draw = partial(curves.curve, weight=weight, pixels=pixels, first=first, last=last)
    drawn = await asyncio.to_thread(draw, points.steps, points.values)
    answer = vars(drawn) | await _places(context, job_id, x, drawn.steps)
    return await asyncio.to_thread(render.numbers, request, answer)


async def _places(context: Gateway, job_id: str, axis: Axis, steps: Sequence[int]) -> dict[str, Any]:
    """Return where on the axis each bucket's last step is; an empty `x` where its steps are kept no more."""
    database = context.service.database
    if axis == "tokens":
        return {"x": await job_readmodels.find_tokens_of_steps(database, job_id, steps)}
    if axis == "step":
        return {}
    times = await job_readmodels.find_times_of_steps(database, job_id, steps)
    return {
        "x": curves.onwards(times.seconds),
        "breaks": curves.breaks(times.attempts),
        "began_at": times.began_at and times.began_at.timestamp(),
    }


@router.get("/jobs/{job_id}/log")
async def log_after(
    visitor: Present,
    context: Context,
    job_id: str,
    attempt: Annotated[int, Query(ge=0, lt=2**31)],
    node: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    after: Annotated[int, Query(ge=-1, lt=2**31)] = -1,
) -> JSONResponse:
    log = await progress.logs(visitor.principal, context, job_id, attempt=attempt, node=node, after=after)
    return JSONResponse({"text": log.text, "next": log.next}, headers={"cache-control": "no-store"})


@router.get("/jobs/{job_id}")
async def job(request: Request, visitor: Present, context: Context, job_id: str) -> Response:
    return await _page(request, visitor, context, job_id, "curves")


@router.get("/jobs/{job_id}/{tab}")
async def job_tab(
    request: Request,
    visitor: Present,
    context: Context,
    job_id: str,
    tab: Tab,
    after: str | None = None,
    attempt: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    node: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    types: Types = [],  # noqa: B006, FastAPI copies it
    before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
) -> Response:
    """`after`: the event, or checkpoint, that a page of its tab begins after. `before`: the number of one of the tab
    Events."""
    options = {"after": after, "attempt": attempt, "node": node, "types": types, "before": before}
    return await _page(request, visitor, context, job_id, tab, **options)


async def _page(
    request: Request, visitor: Visitor, context: Gateway, job_id: str, tab: Tab, **options: Any
) -> Response:
    caller, database = visitor.principal, context.service.database
    row = await job_of(caller, context, job_id)
    view = job_view(row, now=database.now())
    shown = await CONTENTS[tab](caller, context, job_id, **options)
    drawn = await _last_step(context, job_id)
    follows = [("tab", tab), ("step", drawn), *(("type", each) for each in options.get("types", ()))]
    if tab == "checkpoints" and shown["after"]:
        follows.append(("after", shown["after"]))
    return render.page(
        request,
        f"job_{tab}_tab.html.jinja",
        visitor,
        tab=tab,
        tabs=TABS,
        stream=None if row.state in TERMINAL else f"/jobs/{job_id}/stream?{urlencode(follows)}",
        **{"job": view, "now": database.now(), **shown},
    )


async def _curves(caller: Caller, context: Gateway, job_id: str, **options: Any) -> dict[str, Any]:
    row = await job_of(caller, context, job_id)
    memory = row.preparation and row.preparation.device_memory_bytes
    return {
        "charts": CHARTS,
        "axes": AXES,
        "marked": await _marks(caller, context, job_id),
        "limits": {"memory_bytes": memory} if memory else {},
        "num_steps": row.num_steps,
        "has_steps": await _last_step(context, job_id) > 0,
        "picture": (await _attempts(context, job_id))[0],
    }


async def _marks(caller: Caller, context: Gateway, job_id: str) -> charts.Marks:
    database, most = context.service.database, charts.MARKED_ALERTS + 1
    events = await job_readmodels.find_events_of_types(database, job_id, charts.TYPES)
    open_alerts, cleared = [
        await alerts.list_alerts(
            database, caller.tenant, AlertFilter(job_id, is_open=is_open), before=None, limit=most
        )
        for is_open in (True, False)
    ]
    return charts.marks(events, open_alerts, cleared)


async def _timeline(
    caller: Caller,
    context: Gateway,
    job_id: str,
    *,
    after: str | None = None,
    types: Sequence[str] = (),
    **options: Any,
) -> dict[str, Any]:
    database = context.service.database
    before = parse_cursor(after, "ftevent", param="after")
    rows = await readmodels.events_before(database, job_id, before=before, limit=EVENTS + 1, types=types)
    chosen = [("type", each) for each in types]
    following = (
        urlencode([*chosen, ("after", f"ftevent-{rows[EVENTS - 1].id}")]) if len(rows) > EVENTS else ""
    )
    return {
        "events": rows[:EVENTS],
        "next": f"/jobs/{job_id}/timeline?{following}" if following else None,
        "is_first": after is None,
        "chosen": types,
        "types": sorted({*await readmodels.list_types_of_events(database, job_id), *types}),
        "picture": (await _attempts(context, job_id))[0],
    }


async def _attempts(context: Gateway, job_id: str) -> tuple[attempts.Picture | None, int]:
    """Return the picture, and the number of the newest event that it has; 0 where it has none."""
    database = context.service.database
    events = await job_readmodels.find_events_of_types(database, job_id, attempts.TYPES)
    redone = await job_readmodels.find_redone_steps(database, job_id, attempts.begun_after(events))
    newest = events[-1].id if events else 0
    return attempts.drawn(events, redone, now=database.now()), newest


def _drawn(picture: attempts.Picture | None) -> streams.Event:
    return streams.part("job-attempts", render.text("job_attempts.html.jinja", picture=picture))


async def _logs(
    caller: Caller,
    context: Gateway,
    job_id: str,
    *,
    attempt: int | None = None,
    node: int = 0,
    **options: Any,
) -> dict[str, Any]:
    row = await job_of(caller, context, job_id)
    log = await progress.logs(caller, context, job_id, attempt=attempt, node=node, after=-1)
    nodes = await job_readmodels.count_nodes(context.service.database, job_id, log.attempt)
    return {
        "log": log,
        "attempts": range(1, row.attempt + 1),
        "nodes": range(max(nodes, node + 1)),
        "is_live": log.attempt == row.attempt and row.state not in TERMINAL,
    }


async def _checkpoints(
    caller: Caller, context: Gateway, job_id: str, *, after: str | None = None, **options: Any
) -> dict[str, Any]:
    return {"job_id": job_id, **await checkpoints.shown(caller, context, job_id, after)}


async def _settings(caller: Caller, context: Gateway, job_id: str, **options: Any) -> dict[str, Any]:
    row = await job_of(caller, context, job_id)
    answer = representations.job(row)
    groups = groups_of(row.spec, answer.retune.recipe)
    return {"groups": groups, "spec": row.spec, "dataset_id": row.dataset_id}


async def _cost(caller: Caller, context: Gateway, job_id: str, **options: Any) -> dict[str, Any]:
    """What attempts that have ended cost, as the page of costs sums it up."""
    database = context.service.database
    row = await job_of(caller, context, job_id)
    attempts_of_job = await costs.list_attempts(database, caller.tenant, job_id, at_most=ATTEMPTS + 1)
    return {
        "job": job_view(row, now=database.now()),
        "limit": row.spec.max_cost,
        "attempts": attempts_of_job[:ATTEMPTS],
        "has_more": len(attempts_of_job) > ATTEMPTS,
        "total": costs.sums(await costs.total_of_job(database, caller.tenant, job_id)),
        "now": database.now(),
    }


async def _events(
    caller: Caller, context: Gateway, job_id: str, *, before: int | None = None, **options: Any
) -> dict[str, Any]:
    page = await recent_events.list_events(
        context.service.database, caller.tenant, EventFilter(subject=job_id), before=before, limit=EVENTS
    )
    return {
        "events": page.rows,
        "is_first": before is None,
        "next": f"/jobs/{job_id}/events?before={page.older}" if page.older else None,
        "link_of": link_of,
        "kept": context.settings.event_retention,
    }


CONTENTS: Mapping[Tab, Callable[..., Awaitable[dict[str, Any]]]] = {
    "curves": _curves,
    "timeline": _timeline,
    "logs": _logs,
    "checkpoints": _checkpoints,
    "settings": _settings,
    "cost": _cost,
    "events": _events,
}


@router.post("/jobs/{job_id}/{action}")
async def command(
    request: Request, sender: Sender, context: Context, job_id: str, action: Action
) -> Response:
    """What the route of programs does, which waits a moment for the answer; the page itself changes by events."""
    if action not in COMMANDS:
        raise not_found("action", action)
    answer = await COMMANDS[action](sender.principal, context, job_id)
    target = f"/jobs/{answer.id}"
    if "hx-request" not in request.headers:
        return RedirectResponse(target, 303, render.HEADERS)
    if answer.id != job_id:
        return Response(headers={"hx-redirect": target, **render.HEADERS})
    now = context.service.database.now()
    html = render.text("answer.html.jinja", message=f"{DONE[action]} {formats.clock(now)} UTC")
    return Response(html, media_type="text/html", headers=render.HEADERS)
