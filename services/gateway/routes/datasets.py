"""/v1/datasets: validate without starting a job, and the report."""

from uuid import uuid4

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from schemas import layout
from services.gateway import decide, readmodels, representations, responses, tables
from services.gateway.deps import Caller, Context
from services.gateway.errors import not_found
from services.gateway.model import Dataset
from services.gateway.requests import CreateDataset
from services.gateway.routes.jobs import inputs_of

router = APIRouter()

MAX_REPORT_BYTES = 64 * 1024 * 1024


@router.post("/datasets", response_model_exclude_unset=True)
async def validate(caller: Caller, context: Context, body: CreateDataset) -> responses.Dataset:
    dataset_id = f"ds-{uuid4().hex[:16]}"
    async with context.service.unit() as unit:
        inputs = await inputs_of(unit, caller.tenant, body)
        command = decide.dataset_command(body, inputs, tenant=caller.tenant, dataset_id=dataset_id)
        await context.send(unit, caller.tenant, command)
        await tables.note_dataset(unit.conn, command)
        dataset = await readmodels.find_dataset(unit.conn, dataset_id, caller.tenant)
    assert dataset is not None, "it was noted a moment ago"
    return representations.dataset(dataset)


@router.get("/datasets/{dataset_id}", response_model_exclude_unset=True)
async def retrieve(caller: Caller, context: Context, dataset_id: str) -> responses.Dataset:
    return representations.dataset(await _dataset(caller, context, dataset_id))


@router.get(
    "/datasets/{dataset_id}/report",
    response_class=JSONResponse,
    responses={200: {"description": "The report that ingest wrote: problems by rule, with examples"}},
)
async def report(caller: Caller, context: Context, dataset_id: str) -> Response:
    dataset = await _dataset(caller, context, dataset_id)
    key = dataset.detail.report_key
    if key is None and dataset.dataset_version:
        key = layout.dataset(dataset.dataset_version, "report.json")
    if key is None:
        raise not_found("report of dataset", dataset_id)
    data = await context.service.objects.get_bytes(key, limit_bytes=MAX_REPORT_BYTES)
    return Response(data, media_type="application/json", headers={"x-content-type-options": "nosniff"})


async def _dataset(caller: Caller, context: Context, dataset_id: str) -> Dataset:
    dataset = await readmodels.find_dataset(context.service.database, dataset_id, caller.tenant)
    if dataset is None:
        raise not_found("dataset", dataset_id)
    return dataset
