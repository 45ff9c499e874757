"""The list of jobs: searched, filtered, sorted and paged by Postgres, and live."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from services.gateway import job_readmodels, readmodels
from services.gateway.deps import Context, Gateway, invalid_cursor
from services.gateway.job_readmodels import JobOrder
from services.gateway.page import lists, render, search, sparklines, streams
from services.gateway.page.comparison import MAX_RUNS
from services.gateway.page.sessions import Present, Visitor
from services.gateway.page.sparklines import Sparkline
from services.gateway.page.views import JobView, job_view

router = APIRouter()

ROWS = 50
NAMED = 20
"""Most objects that are named whose ids begin with what is searched."""
ORDERS: Mapping[JobOrder, str] = {
    "created": "newest first",
    "worst": "worst first",
    "ended": "last ended first",
    "cost": "most expensive first",
    "loss": "lowest validation loss first",
}

WORST = "failed, with open alerts, running late, not passed by the gate, paused, waiting or running, the rest"
"""In which order the worst are."""


Asked = lists.Address[JobOrder]


def asked(q: lists.Text = "", sort: str = "", after: str | None = None) -> Asked:
    return lists.Address("/jobs", q.strip(), after or None, lists.order_named(sort, ORDERS), ORDERS)


Listed = Annotated[Asked, Depends(asked)]


@router.get("/jobs")
async def jobs(
    request: Request, visitor: Present, context: Context, listed: Listed, go: bool = False
) -> Response:
    """`go`: whether the search was sent, which leads to the only object whose id begins so; one that is typed leads
    to an object by its whole id alone."""
    tenant, database = visitor.principal.tenant, context.service.database
    is_part = "hx-request" in request.headers
    named = await _named(context, tenant, listed.q)
    address = listed.q and await job_readmodels.find_address(database, tenant, listed.q)
    if address := address or (named[0] if go and len(named) == 1 else ""):
        if is_part:
            return Response(headers={"hx-redirect": address, **render.HEADERS})
        return RedirectResponse(address, 303, render.HEADERS)
    views, has_more = await _rows(context, visitor, listed)
    counts = await job_readmodels.count_jobs(database, tenant, search.parse(listed.q))
    curves = await _sparklines(context, tenant, [view.id for view in views])
    return _list(
        *(request, visitor, listed, views),
        has_more=has_more,
        counts=counts,
        curves=curves,
        others=[each for each in named if not each.startswith("/jobs/")],
        headers={"hx-push-url": listed.address()} if go and is_part else {},
        now=database.now(),
    )


async def _named(context: Gateway, tenant: str, text: str) -> list[str]:
    """Addresses of what has an id that begins with the text."""
    if not search.is_id_prefix(text):
        return []
    return await job_readmodels.list_addresses(context.service.database, tenant, text, limit=NAMED)


def _list(
    request: Request,
    visitor: Visitor,
    listed: Asked,
    views: list[JobView],
    *,
    has_more: bool,
    counts: Mapping[str, int],
    curves: Mapping[str, Sparkline],
    others: list[str],
    headers: Mapping[str, str],
    now: datetime,
) -> HTMLResponse:
    chosen = search.parse(listed.q).states
    matching = sum(count for state, count in counts.items() if not chosen or state in chosen)
    present = {"last": _digest({view.id: view.version for view in views}, newer=0)}
    present |= {"newest": views[0].id} if views else {}
    return render.page(
        request,
        "jobs.html.jinja",
        visitor,
        headers=headers,
        jobs=views,
        others=others,
        sparklines=curves,
        listed=listed,
        chips=_chips(listed, counts),
        total=sum(counts.values()),
        matching=matching,
        next=listed.address(after=views[-1].id) if has_more else None,
        stream=listed.address("/jobs/stream", **present),
        now=now,
        rows=ROWS,
        worst=WORST,
        most_compared=MAX_RUNS,
    )


def _chips(listed: Asked, counts: Mapping[str, int]) -> list[lists.Chip]:
    groups = {name: sum(counts.get(state, 0) for state in states) for name, states in search.GROUPS.items()}
    return lists.chips(listed, groups, {"": sum(counts.values())} | groups)


async def _rows(
    context: Gateway, visitor: Visitor, listed: Asked, *, limit: int = ROWS
) -> tuple[list[JobView], bool]:
    """The jobs of this page of the list, and whether there are more."""
    tenant, database = visitor.principal.tenant, context.service.database
    job_filter = search.parse(listed.q)
    if listed.after and await readmodels.find_job(database, listed.after, tenant) is None:
        raise invalid_cursor(listed.after)
    rows = await job_readmodels.list_jobs(
        database, tenant, job_filter, order=listed.sort, after=listed.after, limit=limit + 1
    )
    return [job_view(row, now=database.now()) for row in rows[:limit]], len(rows) > limit


@router.get("/jobs/stream")
async def stream(
    request: Request, visitor: Present, context: Context, listed: Listed, newest: str | None = None
) -> StreamingResponse:
    """Rows that changed, and how many newer jobs there are; the list stays as it is until it is loaded again.

    `newest`: the first job of a list that begins with the newest. Where a new job comes into any other is not known
    without that list.
    """
    tenant, database = visitor.principal.tenant, context.service.database
    job_filter = search.parse(listed.q)
    is_from_newest = listed.sort == "created" and listed.after is None

    async def count_newer() -> int:
        if not is_from_newest:
            return 0
        return await job_readmodels.count_newer_jobs(database, tenant, job_filter, newest)

    skipped = min(await count_newer(), ROWS) if newest else 0
    views, _ = await _rows(context, visitor, listed, limit=ROWS + skipped)
    job_ids = [view.id for view in views[skipped:]]
    sent: dict[str, str] = {}

    async def look(last: str) -> streams.Changes:
        versions = await job_readmodels.find_versions_of_jobs(database, tenant, job_ids)
        newer = await count_newer()
        present = _digest(versions, newer=newer)
        changed = [job_id for job_id in job_ids if versions.get(job_id) != sent.get(job_id)]
        sent.update(versions)
        if present == last:
            return streams.Changes(last)
        curves = await _sparklines(context, tenant, changed)
        parts = [await _row_part(context, visitor, job_id, curves) for job_id in changed]
        return streams.Changes(present, (*(each for each in parts if each), ("newer", newer)))

    return streams.follow(request, context, visitor, look)


def _digest(versions: Mapping[str, str], *, newer: int) -> str:
    return hashlib.sha256(f"{sorted(versions.items())} {newer}".encode()).hexdigest()[:16]


async def _sparklines(context: Gateway, tenant: str, job_ids: list[str]) -> dict[str, Sparkline]:
    curves = await job_readmodels.find_sampled_curves(context.service.database, tenant, job_ids)
    drawn = {job_id: sparklines.drawn(each.steps, each.values) for job_id, each in curves.items()}
    return {job_id: each for job_id, each in drawn.items() if each is not None}


async def _row_part(
    context: Gateway, visitor: Visitor, job_id: str, curves: Mapping[str, Sparkline]
) -> streams.Event | None:
    database = context.service.database
    row = await readmodels.find_job(database, job_id, visitor.principal.tenant)
    if row is None:
        return None
    now = database.now()
    shown = {"job": job_view(row, now=now), "sparklines": curves, "visitor": visitor, "now": now}
    html = render.text("job_row.html.jinja", **shown)
    return streams.part(f"job-{job_id}", html)
