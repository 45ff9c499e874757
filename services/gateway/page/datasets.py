"""Datasets: what became of the rows of a file, rule by rule, and validation without a job."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import ValidationError

from schemas.excerpts import DatasetExcerpts
from schemas.report import DatasetReport, FileReport
from services.gateway import job_readmodels, model, readmodels
from services.gateway.deps import Context, Gateway, invalid_cursor
from services.gateway.page import dataset_drafts, lists, new_job, render, reports, streams
from services.gateway.page.excerpts import excerpts_view
from services.gateway.page.sessions import Present, Visitor
from services.gateway.readmodels import DatasetOrder
from services.gateway.routes import datasets
from services.gateway.routes.datasets import dataset_of
from shared.errors import CorruptObject, StorageUnavailable

router = APIRouter()

ROWS = 50
JOBS = 20
ORDERS: Mapping[DatasetOrder, str] = {
    "created": "newest first",
    "name": "by file name",
    "tokens": "most tokens first",
}
Listed = Annotated[lists.Asked[DatasetOrder], Depends(lists.asked_by(lists.statuses(reports.STATES), ORDERS))]


@router.get("/datasets")
async def datasets_page(request: Request, visitor: Present, context: Context, listed: Listed) -> Response:
    """The tenant's datasets, newest first."""
    tenant, database = visitor.principal.tenant, context.service.database
    if listed.after and await readmodels.find_dataset(database, listed.after, tenant) is None:
        raise invalid_cursor(listed.after)
    shown = await _list(visitor, context, listed)
    return render.page(request, "datasets.html.jinja", visitor, stream=listed.stream, **shown)


async def _list(visitor: Visitor, context: Gateway, listed: Listed) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant, context.service.database
    rows = await readmodels.list_datasets(
        database, tenant, after=listed.after, limit=ROWS + 1, only=listed.only, order=listed.sort
    )
    shown = [row.dataset_id for row in rows[:ROWS]]
    names = await job_readmodels.find_names_of_training_files(database, tenant, shown)
    return {
        "datasets": [reports.dataset_view(row) for row in rows[:ROWS]],
        "names": names,
        "listed": listed,
        "next": listed.address(after=shown[-1]) if len(rows) > ROWS else None,
        "version": streams.version_of(rows, names),
        "now": database.now(),
    }


@router.get("/datasets/stream")
async def list_stream(
    request: Request, visitor: Present, context: Context, listed: Listed
) -> StreamingResponse:
    async def show() -> dict[str, Any]:
        return await _list(visitor, context, listed)

    return streams.follow_part(
        request, context, visitor, show, element_id="list", template="datasets_parts.html.jinja"
    )


@router.get("/datasets/{dataset_id}")
async def dataset(
    request: Request,
    visitor: Present,
    context: Context,
    dataset_id: str,
    rule: Annotated[str, Query(max_length=200)] = "",
    begin: Annotated[int, Query(ge=0, lt=2**31)] = 0,
) -> Response:
    row = await dataset_of(visitor.principal, context, dataset_id)
    shown = await _shown(visitor, context, row, rule, begin)
    stream = f"/datasets/{dataset_id}/stream" if row.state == "validating" else None
    return render.page(request, "dataset.html.jinja", visitor, stream=stream, **shown)


async def _shown(
    visitor: Visitor, context: Gateway, row: model.Dataset, rule: str = "", begin: int = 0
) -> dict[str, Any]:
    tenant, database = visitor.principal.tenant, context.service.database
    report, why_none = await dataset_drafts.find_report(context, row)
    excerpts = await _excerpts(context, row) if report else None
    training = next((file for file in report.files if file.role == "training"), None) if report else None
    return {
        "dataset": reports.dataset_view(row),
        "report": report,
        "why_none": why_none,
        "jobs": await job_readmodels.list_jobs_of_dataset(database, row.dataset_id, tenant, limit=JOBS),
        "files": await job_readmodels.find_files(database, tenant, _digests(row, report)),
        "now": database.now(),
        "rule": rule,
        "training": training,
        "excerpts": excerpts_view(excerpts) if excerpts else None,
        **await _job_on(visitor, context, row, report),
        **(_of_training(report, training, rule, begin) if report and training else {}),
    }


def _digests(row: model.Dataset, report: DatasetReport | None) -> list[str]:
    """sha256 of all files that are known to be of it."""
    named = row.detail.files.model_dump().values() if row.detail.files else ()
    files = report.files if report else ()
    return [*filter(None, named), *(file.sha256 for file in files)]


def _of_training(report: DatasetReport, file: FileReport, rule: str, begin: int) -> dict[str, Any]:
    return {
        "parts": reports.parts(file),
        "rules": reports.rules(file),
        "listed": reports.listed(file, rule, begin),
        "bars": reports.length_bars(report),
        "overlaps": reports.contaminated(file),
        "clusters": reports.clusters(file),
    }


async def _job_on(
    visitor: Visitor, context: Gateway, row: model.Dataset, report: DatasetReport | None
) -> dict[str, Any]:
    """What is known of a job by the default recipe before there is one."""
    if row.state != "ready":
        return {"why_not_trained": "", "draft": None}
    values, why_not = await dataset_drafts.find_values(context, row, report)
    if why_not:
        return {"why_not_trained": why_not, "draft": None}
    draft = await new_job.draft_of(visitor, context, values)
    known = await new_job.known_of(visitor, context, draft)
    needs = {name: known[name] for name in ("memory", "pools", "times")}
    resolved = new_job.resolved_by(draft.prepared.submit.spec, row) if draft.prepared else {}
    return {"why_not_trained": "", "draft": draft, "resolved": resolved, **needs}


async def _excerpts(context: Gateway, row: model.Dataset) -> DatasetExcerpts | None:
    """The excerpts that ingest wrote; None where there are none to show: the report alone is shown then."""
    try:
        data = await datasets.find_excerpts(context, row)
    except (StorageUnavailable, CorruptObject):
        return None
    try:
        return await asyncio.to_thread(DatasetExcerpts.model_validate_json, data) if data else None
    except ValidationError:
        return None


@router.get("/datasets/{dataset_id}/stream")
async def stream(request: Request, visitor: Present, context: Context, dataset_id: str) -> StreamingResponse:
    await dataset_of(visitor.principal, context, dataset_id)

    async def look(last: str) -> streams.Changes:
        version = await job_readmodels.find_version_of_dataset(
            context.service.database, dataset_id, visitor.principal.tenant
        )
        if version == last:
            return streams.Changes(last)
        row = await dataset_of(visitor.principal, context, dataset_id)
        html = render.text("dataset_parts.html.jinja", **await _shown(visitor, context, row))
        return streams.Changes(version, (streams.part("dataset", html),))

    return streams.follow(request, context, visitor, look)


@router.get("/datasets/{dataset_id}/report.json")
async def report_file(visitor: Present, context: Context, dataset_id: str) -> Response:
    answer = await datasets.report(visitor.principal, context, dataset_id)
    answer.headers["content-disposition"] = 'attachment; filename="report.json"'
    answer.headers["cache-control"] = "no-store"
    return answer
