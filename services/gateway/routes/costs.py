"""/v1/costs: what the tenant's attempts cost, in groups; /v1/admin/costs: what those of all tenants did."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response

from services.gateway import costs
from services.gateway.costs import CostRow, GroupedBy, GroupedByOfAll
from services.gateway.deps import Admin, Caller, Context, Gateway
from services.gateway.responses import Costs

router = APIRouter()

Month = Annotated[str | None, Query(pattern=r"^2[0-9]{3}-(0[1-9]|1[0-2])$", max_length=7)]
"""A calendar month of UTC, such as 2026-11."""
Format = Annotated[Literal["json", "csv"] | None, Query(alias="format")]
CSV = "text/csv"
ANSWERS: dict[int | str, dict[str, Any]] = {200: {"content": {CSV: {"schema": {"type": "string"}}}}}


@router.get("/costs", response_model=Costs, responses=ANSWERS)
async def own(
    caller: Caller,
    context: Context,
    by: GroupedBy = "job",
    month: Month = None,
    file_format: Format = None,
    accept: Annotated[str, Header()] = "",
) -> Costs | Response:
    """List what attempts that have ended cost, by job, sweep, metadata `experiment`, pool, day or month; with
    `format=csv`, or where `text/csv` is accepted, as a file.
    """
    return await _answer(context, caller.tenant, by, month, is_csv=_is_csv(file_format, accept))


@router.get("/admin/costs", response_model=Costs, responses=ANSWERS)
async def of_all(
    admin: Admin,
    context: Context,
    by: GroupedByOfAll = "tenant",
    month: Month = None,
    file_format: Format = None,
    accept: Annotated[str, Header()] = "",
) -> Costs | Response:
    """List what attempts of all tenants cost."""
    return await _answer(context, None, by, month, is_csv=_is_csv(file_format, accept))


def _is_csv(file_format: str | None, accept: str) -> bool:
    return file_format == "csv" or (file_format is None and CSV in accept)


def as_file(by: str, month: str | None, rows: Sequence[CostRow]) -> Response:
    name = f"costs-by-{by}{f'-{month}' if month else ''}.csv"
    headers = {"content-disposition": f'attachment; filename="{name}"', "x-content-type-options": "nosniff"}
    return Response(costs.as_csv(by, rows), media_type=f"{CSV}; charset=utf-8", headers=headers)


async def _answer(
    context: Gateway, tenant: str | None, by: str, month: str | None, *, is_csv: bool
) -> Costs | Response:
    database, period = context.service.database, costs.period_of(month)
    if is_csv:
        rows = await costs.list_costs(database, tenant, by, period, at_most=costs.MOST_LINES)
        return as_file(by, month, rows)
    rows = await costs.list_costs(database, tenant, by, period, at_most=costs.MOST_GROUPS + 1)
    return Costs(
        object="costs",
        by=by,
        month=month,
        total=costs.sums(await costs.find_total(database, tenant, period)),
        groups=tuple(map(costs.group, rows[: costs.MOST_GROUPS])),
        has_more=len(rows) > costs.MOST_GROUPS,
    )
