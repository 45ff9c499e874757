"""/v1/datasets: validate without starting a job, and the report."""

from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from fastapi.responses import Response

from schemas import layout
from services.gateway import decide, readmodels, representations
from services.gateway.deps import Caller, Context
from services.gateway.errors import not_found
from services.gateway.requests import CreateDataset
from services.gateway.routes.jobs import inputs_of

router = APIRouter()

MAX_REPORT_BYTES = 64 * 1024 * 1024


@router.post("/datasets")
async def validate(caller: Caller, context: Context, body: CreateDataset) -> dict[str, Any]:
    dataset_id = f"ds-{uuid4().hex[:16]}"
    async with context.service.unit() as unit:
        inputs = await inputs_of(unit, caller.tenant, body)
        command = decide.dataset_command(body, inputs, tenant=caller.tenant, dataset_id=dataset_id)
        await context.send(unit, caller.tenant, command)
        await readmodels.note_dataset(unit.conn, command)
        row = await unit.conn.fetchrow(readmodels.FIND_DATASET, dataset_id, caller.tenant)
    return representations.dataset(row)


@router.get("/datasets/{dataset_id}")
async def retrieve(caller: Caller, context: Context, dataset_id: str) -> dict[str, Any]:
    return representations.dataset(await _row(caller, context, dataset_id))


@router.get("/datasets/{dataset_id}/report")
async def report(caller: Caller, context: Context, dataset_id: str) -> Response:
    row = await _row(caller, context, dataset_id)
    key = row["detail"].get("report_key")
    if key is None and row["dataset_version"]:
        key = layout.dataset(row["dataset_version"], "report.json")
    if key is None:
        raise not_found("report of dataset", dataset_id)
    data = await context.service.objects.get_bytes(key, limit_bytes=MAX_REPORT_BYTES)
    return Response(data, media_type="application/json", headers={"x-content-type-options": "nosniff"})


async def _row(caller: Caller, context: Context, dataset_id: str) -> Any:
    row = await context.service.database.fetchrow(readmodels.FIND_DATASET, dataset_id, caller.tenant)
    if row is None:
        raise not_found("dataset", dataset_id)
    return row
