"""Costs: what attempts cost by day and in groups, and what the budget still has; all tenants' for the operator."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse

from services.gateway import costs
from services.gateway.costs import CostRow, GroupedBy, GroupedByOfAll
from services.gateway.deps import Context, Gateway
from services.gateway.page import formats, render, streams
from services.gateway.page.sessions import Operator, Present, Visitor
from services.gateway.quotas import month_start, next_month
from services.gateway.routes.costs import Month, as_file

router = APIRouter()

ROWS = 100
Begin = Annotated[int, Query(ge=0, le=costs.MOST_LINES)]
"""Groups before those of the page."""
MONTHS = 12
"""Months that can be chosen."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 200, 76, 8, 12, 26
GROUPS: dict[GroupedByOfAll, str] = {
    "tenant": "Tenant",
    "job": "Job",
    "sweep": "Sweep",
    "experiment": "Experiment",
    "pool": "Pool",
    "day": "Day",
    "month": "Month",
}


@dataclass(frozen=True)
class Bar:
    """A day: what was charged, and on top of it what is free."""

    x: float
    width: float
    charged_top: float
    charged_height: float
    free_top: float
    free_height: float
    title: str
    number: str
    """Day of the month, where it is written below."""


@dataclass(frozen=True)
class Tick:
    y: float
    text: str


@dataclass(frozen=True)
class Days:
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    words: str


@dataclass(frozen=True)
class Choice:
    """What the address chooses: groups, month, and the group at which the page begins."""

    by: GroupedByOfAll
    month: str | None
    begin: int


def _choice(by: Annotated[GroupedBy, Query()] = "job", month: Month = None, begin: Begin = 0) -> Choice:
    return Choice(by, month, begin)


def _choice_of_all(
    by: Annotated[GroupedByOfAll, Query()] = "tenant", month: Month = None, begin: Begin = 0
) -> Choice:
    return Choice(by, month, begin)


Chosen = Annotated[Choice, Depends(_choice)]
ChosenOfAll = Annotated[Choice, Depends(_choice_of_all)]


@router.get("/costs")
async def shown(request: Request, visitor: Present, context: Context, choice: Chosen) -> Response:
    return await _page(request, visitor, context, choice)


@router.get("/admin/costs")
async def shown_of_all(
    request: Request, visitor: Operator, context: Context, choice: ChosenOfAll
) -> Response:
    return await _page(request, visitor, context, choice)


async def _page(request: Request, visitor: Visitor, context: Gateway, choice: Choice) -> Response:
    values = await _shown(visitor, context, choice)
    asked = f"by={choice.by}&month={values['chosen']}&begin={choice.begin}"
    stream = f"{values['own_path']}/stream?{asked}"
    return render.page(
        request, "costs.html.jinja", visitor, stream=stream, months=_months(values["now"]), **values
    )


async def _shown(visitor: Visitor, context: Gateway, choice: Choice) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant or None, context.service.database
    by, begin, now = choice.by, choice.begin, database.now()
    chosen = choice.month or f"{now:%Y-%m}"
    period = costs.period_of(chosen)
    rows = (await costs.list_costs(database, tenant, by, period, at_most=begin + ROWS + 1))[begin:]
    days = await costs.list_costs(database, tenant, "day", period, at_most=31)
    present = await costs.find_total(database, tenant, costs.period_of(f"{now:%Y-%m}"))
    return {
        "is_of_all": tenant is None,
        "own_path": "/admin/costs" if tenant is None else "/costs",
        "by": by,
        "chosen": chosen,
        "groups": {name: word for name, word in GROUPS.items() if tenant is None or name != "tenant"},
        "rows": [(row, costs.sums(row)) for row in rows[:ROWS]],
        "begin": begin,
        "next": begin + ROWS if len(rows) > ROWS else None,
        "total": costs.sums(await costs.find_total(database, tenant, period)),
        "days": bars_of(days, period.since),
        "size": (WIDTH, HEIGHT, LEFT),
        "limit": visitor.principal.quotas.cost_per_month,
        "charged": present.charged,
        "begins_again": next_month(now),
        "now": now,
    }


@router.get("/costs/stream")
async def stream(request: Request, visitor: Present, context: Context, choice: Chosen) -> StreamingResponse:
    return _follow(request, visitor, context, choice)


@router.get("/admin/costs/stream")
async def stream_of_all(
    request: Request, visitor: Operator, context: Context, choice: ChosenOfAll
) -> StreamingResponse:
    return _follow(request, visitor, context, choice)


def _follow(request: Request, visitor: Visitor, context: Gateway, choice: Choice) -> StreamingResponse:
    async def look(last: str) -> streams.Changes:
        newest = await costs.find_newest(context.service.database, visitor.principal.tenant or None)
        version = streams.version_of(newest)
        if version == last:
            return streams.Changes(last)
        html = render.text("costs_parts.html.jinja", **await _shown(visitor, context, choice))
        return streams.Changes(version, (streams.part("costs", html),))

    return streams.follow(request, context, visitor, look)


@router.get("/costs.csv")
async def file(visitor: Present, context: Context, choice: Chosen) -> Response:
    return await _file(context, visitor.principal.tenant, choice)


@router.get("/admin/costs.csv")
async def file_of_all(visitor: Operator, context: Context, choice: ChosenOfAll) -> Response:
    return await _file(context, None, choice)


async def _file(context: Gateway, tenant: str | None, choice: Choice) -> Response:
    """All groups from the first on, whatever page is shown."""
    period, most = costs.period_of(choice.month), costs.MOST_LINES
    rows = await costs.list_costs(context.service.database, tenant, choice.by, period, at_most=most)
    return as_file(choice.by, choice.month, rows)


def _months(now: datetime) -> list[str]:
    months, start = [], month_start(now)
    for _ in range(MONTHS):
        months.append(f"{start:%Y-%m}")
        start = month_start(start - timedelta(days=1))
    return months


def bars_of(days: list[CostRow], month: datetime) -> Days | None:
    """Return a bar for each day of the month; None where nothing ended in it."""
    if not any(row.cost for row in days):
        return None
    by_day = {row.name: row for row in days}
    highest = max(row.cost for row in days)
    last = (next_month(month) - timedelta(days=1)).day
    slot = (WIDTH - LEFT - RIGHT) / last
    bars = []
    for day in range(1, last + 1):
        row = by_day.get(f"{month:%Y-%m}-{day:02}")
        charged, cost = (row.charged, row.cost) if row else (Decimal(0), Decimal(0))
        top, split = _y(cost, highest), _y(charged, highest)
        free = cost - charged
        bars.append(
            Bar(
                x=round(LEFT + slot * (day - 1) + slot * 0.15, 1),
                width=round(slot * 0.7, 1),
                charged_top=split,
                charged_height=round(HEIGHT - BOTTOM - split, 1),
                free_top=top,
                free_height=round(split - top, 1),
                title=f"{month:%Y-%m}-{day:02}: {formats.money(charged)} charged, {formats.money(free)} not charged",
                number=str(day) if day == 1 or day % 5 == 0 else "",
            )
        )
    ticks = tuple(Tick(_y(each, highest), formats.money(each)) for each in _ticks(highest))
    total = sum((row.cost for row in days), Decimal(0))
    words = f"Cost by day: {formats.money(total)} in {month:%Y-%m}, at most {formats.money(highest)} in a day"
    return Days(tuple(bars), ticks, words)


def _ticks(highest: Decimal) -> list[Decimal]:
    """Return round sums from 0 on, at most five, of cents and more; the highest sum where that is less."""
    tenfold = max(Decimal("0.01"), Decimal(10) ** (highest / 5).adjusted())
    step = next(tenfold * part for part in (1, 2, 5, 10) if tenfold * part * 5 > highest)
    ticks = [step * number for number in range(int(highest // step) + 1)]
    return ticks if len(ticks) > 1 else [*ticks, highest]


def _y(cost: Decimal, highest: Decimal) -> float:
    return round(HEIGHT - BOTTOM - float(cost / highest) * (HEIGHT - BOTTOM - TOP), 1)
