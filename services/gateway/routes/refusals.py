"""/v1/refusals: commands of the tenant that were not carried out, also those that came over Kafka."""

from typing import Any

from fastapi import APIRouter

from services.gateway import readmodels, shapes
from services.gateway.deps import Caller, Context, page_size, row_number, unknown_place

router = APIRouter()


@router.get("/refusals")
async def list_refusals(
    caller: Caller, context: Context, after: str | None = None, limit: int = 20
) -> dict[str, Any]:
    """Newest first."""
    size = page_size(limit)
    before = row_number(after, "refusal", param="after")
    database = context.service.database
    if after and not await database.fetchval(readmodels.HAS_REFUSAL, caller.tenant, before):
        raise unknown_place(after)
    rows = await database.fetch(readmodels.LIST_REFUSALS, caller.tenant, before, size + 1)
    return shapes.page([shapes.refusal(row) for row in rows[:size]], has_more=len(rows) > size)
