"""/v1/refusals: commands of the tenant that were not carried out, also those that came over Kafka."""

from typing import Any

from fastapi import APIRouter

from services.gateway import readmodels, representations
from services.gateway.deps import Caller, Context, invalid_cursor, page_size, parse_cursor

router = APIRouter()


@router.get("/refusals")
async def list_refusals(
    caller: Caller, context: Context, after: str | None = None, limit: int = 20
) -> dict[str, Any]:
    """Newest first."""
    size = page_size(limit)
    before = parse_cursor(after, "refusal", param="after")
    database = context.service.database
    if after and not await database.fetchval(readmodels.HAS_REFUSAL, caller.tenant, before):
        raise invalid_cursor(after)
    rows = await database.fetch(readmodels.LIST_REFUSALS, caller.tenant, before, size + 1)
    return representations.page(
        [representations.refusal(row) for row in rows[:size]], has_more=len(rows) > size
    )
