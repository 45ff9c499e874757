"""/v1/refusals: commands of the tenant that were not carried out, also those that came over Kafka."""

from fastapi import APIRouter

from services.gateway import readmodels, representations
from services.gateway.deps import Caller, Context, invalid_cursor, page_size, parse_cursor
from services.gateway.responses import Page, Refusal

router = APIRouter()


@router.get("/refusals")
async def list_refusals(
    caller: Caller, context: Context, after: str | None = None, limit: int = 20
) -> Page[Refusal]:
    """List refusals, the newest first."""
    size = page_size(limit)
    before = parse_cursor(after, "refusal", param="after")
    database = context.service.database
    if after and not await readmodels.has_refusal(database, caller.tenant, before):
        raise invalid_cursor(after)
    refusals = await readmodels.list_refusals(database, caller.tenant, before=before, limit=size + 1)
    return representations.page([*map(representations.refusal, refusals)], size=size)
