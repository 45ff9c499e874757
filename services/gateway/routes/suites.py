"""/v1/suites: what every gate asks."""

from typing import Any

from fastapi import APIRouter

from services.gateway import readmodels, shapes
from services.gateway.deps import Caller, Found

router = APIRouter()


@router.get("/suites")
async def list_suites(caller: Caller, found: Found) -> dict[str, Any]:
    rows = await found.service.database.fetch(readmodels.LIST_SUITES)
    return shapes.page([shapes.suite(row) for row in rows], has_more=False)
