"""/v1/suites: what every gate asks."""

from fastapi import APIRouter

from services.gateway import readmodels, representations
from services.gateway.deps import Caller, Context
from services.gateway.responses import Page, Suite

router = APIRouter()


@router.get("/suites", response_model_exclude_unset=True)
async def list_suites(caller: Caller, context: Context) -> Page[Suite]:
    suites = await readmodels.list_suites(context.service.database)
    return representations.page([*map(representations.suite, suites)], size=len(suites))
