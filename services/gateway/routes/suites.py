"""/v1/suites: what every gate asks."""

from fastapi import APIRouter

from services.gateway import readmodels, representations
from services.gateway.deps import LARGE_PAGE, Caller, Context, invalid_cursor, page_size
from services.gateway.responses import Page, Suite

router = APIRouter()


@router.get("/suites", response_model_exclude_unset=True)
async def list_suites(
    caller: Caller, context: Context, after: str | None = None, limit: int = LARGE_PAGE
) -> Page[Suite]:
    """Benchmarks first, by name."""
    size = page_size(limit, at_most=LARGE_PAGE)
    suites = [*map(representations.suite, await readmodels.list_suites(context.service.database))]
    names = [suite.id for suite in suites]
    if after is not None and after not in names:
        raise invalid_cursor(after)
    first = 0 if after is None else names.index(after) + names.count(after)
    return representations.page(suites[first:], size=size)
