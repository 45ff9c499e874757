"""/v1/suites: what every gate asks."""

from typing import Any

from fastapi import APIRouter

from services.gateway import readmodels, representations
from services.gateway.deps import Caller, Context

router = APIRouter()


@router.get("/suites")
async def list_suites(caller: Caller, context: Context) -> dict[str, Any]:
    rows = await context.service.database.fetch(readmodels.LIST_SUITES)
    return representations.page([representations.suite(row) for row in rows], has_more=False)
