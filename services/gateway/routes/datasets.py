"""/v1/datasets: validate without starting a job, the report, and the end of a version."""

from uuid import uuid4

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from schemas import layout
from schemas.dataset import DeleteDataset
from schemas.excerpts import DatasetExcerpts
from services.gateway import decide, readmodels, representations, responses, tables
from services.gateway.access import Principal
from services.gateway.deps import Caller, Context, Gateway, invalid_cursor, page_size
from services.gateway.errors import ApiError, not_found
from services.gateway.model import Dataset
from services.gateway.requests import CreateDataset
from services.gateway.responses import DeletedDataset, Page
from services.gateway.routes.jobs import inputs_of

router = APIRouter()

MAX_REPORT_BYTES = 64 * 1024 * 1024
MAX_EXCERPTS_BYTES = 4 * 1024 * 1024
REPORT = "report.json"


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


@router.get("/datasets", response_model_exclude_unset=True)
async def list_datasets(
    caller: Caller, context: Context, after: str | None = None, limit: int = 20
) -> Page[responses.Dataset]:
    """List the tenant's datasets, the newest first."""
    size, database = page_size(limit), context.service.database
    if after is not None and await readmodels.find_dataset(database, after, caller.tenant) is None:
        raise invalid_cursor(after)
    datasets = await readmodels.list_datasets(database, caller.tenant, after=after, limit=size + 1)
    return representations.page([*map(representations.dataset, datasets)], size=size)


@router.delete("/datasets/{dataset_id}")
async def delete(caller: Caller, context: Context, dataset_id: str) -> DeletedDataset:
    """Delete its version, and with it every dataset of that version, once no job uses it."""
    dataset = await dataset_of(caller, context, dataset_id)
    if dataset.dataset_version is None:
        message = f"dataset {dataset_id!r} is {dataset.state} and has no version to delete"
        raise ApiError(400, message, param="dataset_id", code="no_version")
    if dataset.state != "deleted":
        command = DeleteDataset(dataset_version=dataset.dataset_version, tenant=caller.tenant)
        async with context.service.unit() as unit:
            command_id = (await context.send(unit, caller.tenant, command))[0]
        await context.outcome_of(command_id)
        dataset = await dataset_of(caller, context, dataset_id)
    return DeletedDataset(id=dataset_id, object="dataset", deleted=dataset.state == "deleted")


@router.get("/datasets/{dataset_id}", response_model_exclude_unset=True)
async def retrieve(caller: Caller, context: Context, dataset_id: str) -> responses.Dataset:
    return representations.dataset(await dataset_of(caller, context, dataset_id))


@router.get(
    "/datasets/{dataset_id}/report",
    response_class=JSONResponse,
    responses={200: {"description": "The report that ingest wrote: problems by rule, with examples"}},
)
async def report(caller: Caller, context: Context, dataset_id: str) -> Response:
    dataset = await dataset_of(caller, context, dataset_id)
    try:
        data = await find_report(context, dataset)
    except KeyError:  # the object is not in the store any more
        data = None
    if data is None:
        raise not_found("report of dataset", dataset_id)
    return Response(data, media_type="application/json", headers={"x-content-type-options": "nosniff"})


@router.get(
    "/datasets/{dataset_id}/excerpts",
    response_class=JSONResponse,
    responses={
        200: {
            "model": DatasetExcerpts,
            "description": "Texts of duplicates and contaminated rows, and windows as they are packed",
        }
    },
)
async def excerpts(caller: Caller, context: Context, dataset_id: str) -> Response:
    dataset = await dataset_of(caller, context, dataset_id)
    data = await find_excerpts(context, dataset)
    if data is None:
        raise not_found("excerpts of dataset", dataset_id)
    return Response(data, media_type="application/json", headers={"x-content-type-options": "nosniff"})


async def find_excerpts(context: Gateway, dataset: Dataset) -> bytes | None:
    """Return the JSON of the excerpts, which lie beside the report; None where ingest wrote none."""
    key = _report_key(dataset)
    if key is None:
        return None
    key = f"{key.removesuffix(REPORT)}{layout.EXCERPTS}"
    try:
        return await context.service.objects.get_bytes(key, limit_bytes=MAX_EXCERPTS_BYTES)
    except KeyError:  # the object is not in the store: written by an earlier release, or deleted
        return None


def _report_key(dataset: Dataset) -> str | None:
    key = dataset.detail.report_key
    if key is None and dataset.dataset_version:
        key = layout.dataset(dataset.dataset_version, REPORT)
    return key


async def find_report(context: Gateway, dataset: Dataset) -> bytes | None:
    """Return the JSON of the report; None where ingest wrote none. Raises KeyError where it is not in the store."""
    key = _report_key(dataset)
    return None if key is None else await context.service.objects.get_bytes(key, limit_bytes=MAX_REPORT_BYTES)


async def dataset_of(caller: Principal, context: Gateway, dataset_id: str) -> Dataset:
    dataset = await readmodels.find_dataset(context.service.database, dataset_id, caller.tenant)
    if dataset is None:
        raise not_found("dataset", dataset_id)
    return dataset
