"""A new job: its file, what it is trained on and how, what is known before it is submitted, and the job itself."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from schemas.placement import takes
from schemas.resolution import num_steps, resolve_recipe
from schemas.specification import DatasetFormat, JobSpec
from services.gateway import model, readmodels, store, usage
from services.gateway.access import is_same_key
from services.gateway.deps import Context, Gateway
from services.gateway.errors import ApiError
from services.gateway.obstacles import suited_pools
from services.gateway.page import dataset_drafts, drafts, render, samples, sessions, snippets
from services.gateway.page.drafts import Problem, Values
from services.gateway.page.sessions import Present, Sender, Visitor
from services.gateway.quotas import QuotaExceeded, Quotas
from services.gateway.requests import CreateDataset, CreateJob
from services.gateway.routes import datasets, files, jobs
from services.gateway.routes.jobs import Prepared, job_of
from services.gateway.uploads import DATASET_PURPOSES
from shared.errors import Refused

router = APIRouter()

FILES = 100
BASES = 200
VERSIONS = 50
FIELDS = (*drafts.PATHS, drafts.OPTIONS)


@dataclass(frozen=True)
class Draft:
    """What the form holds, and what is known of the job that it asks for."""

    values: Values
    problems: tuple[Problem, ...] = ()
    body: CreateJob | None = None
    prepared: Prepared | None = None

    @property
    def is_complete(self) -> bool:
        return bool(self.values.get("model") and self.values.get("training_file"))

    @property
    def warnings(self) -> list[str]:
        obstacles = self.prepared.obstacles if self.prepared else ()
        return [each.message for each in obstacles if not each.is_final]


@router.get("/jobs/new")
async def form(
    request: Request,
    visitor: Present,
    context: Context,
    training_file: str = "",
    base: str = "",
    origin: Annotated[str, Query(alias="from")] = "",
    dataset: str = "",
) -> HTMLResponse:
    """`origin`: a job that the form is filled in from, `dataset`: one whose rows it trains on."""
    values: dict[str, str] = {}
    if dataset:
        row_of_dataset = await datasets.dataset_of(visitor.principal, context, dataset)
        report, _ = await dataset_drafts.find_report(context, row_of_dataset)
        of_dataset, why_not = await dataset_drafts.find_values(context, row_of_dataset, report)
        if why_not:
            raise ApiError(
                400, f"no job can train on {dataset}: {why_not}", param="dataset", code="invalid_value"
            )
        values |= of_dataset
    if origin:
        row = await job_of(visitor.principal, context, origin)
        values = drafts.values_of(drafts.like(row, await policies_of(context, row)))
    values |= {name: value for name, value in (("training_file", training_file), ("model", base)) if value}
    return await _page(
        request, visitor, context, await draft_of(visitor, context, values), origin=origin, dataset_id=dataset
    )


@router.get("/jobs/new/sample-{kind}.jsonl")
async def sample(visitor: Present, kind: DatasetFormat) -> Response:
    headers = {**render.HEADERS, "content-disposition": f'attachment; filename="sample-{kind.value}.jsonl"'}
    return Response(samples.as_file(kind), media_type="application/jsonl", headers=headers)


async def policies_of(context: Gateway, row: model.Job) -> list[Any]:
    dataset_ids = [stage.dataset_id for stage in row.stages] or [row.dataset_id or ""]
    database = context.service.database
    return [await readmodels.find_policy_of_dataset(database, each, row.tenant) for each in dataset_ids]


@router.post("/jobs/new/check")
async def check(request: Request, sender: Sender, context: Context) -> HTMLResponse:
    """The same page with what is known of the job: nothing is submitted."""
    values, once = await _sent(request)
    return await _page(request, sender, context, await draft_of(sender, context, values), once=once)


@router.post("/jobs/new")
async def submit(request: Request, sender: Sender, context: Context) -> Response:
    """Make the job; the same form sent again leads to the same job."""
    values, once = await _sent(request)
    try:
        body = drafts.request_of(values)
        written = json.dumps(drafts.as_asked(body), sort_keys=True)
        digest = hashlib.sha256(written.encode()).hexdigest()
        submitted = await jobs.submit(
            sender.principal, context, body, digest=digest, idempotency_key=f"page-{once}-{digest[:16]}"
        )
    except (Refused, QuotaExceeded, ValidationError, ApiError) as error:
        draft = Draft(values, tuple(_problems(error)))
        return await _page(request, sender, context, draft, once=once, status=400)
    return RedirectResponse(f"/jobs/{submitted.body['id']}", 303, render.HEADERS)


@router.post("/datasets")
async def validate(request: Request, sender: Sender, context: Context) -> Response:
    """Validate the rows of the form as they would be for the job, without one."""
    values, once = await _sent(request)
    try:
        asked = drafts.as_asked(drafts.request_of(values))
        body = CreateDataset.model_validate(
            {name: value for name, value in asked.items() if name in CreateDataset.model_fields}
        )
        answer = await datasets.validate(sender.principal, context, body)
    except (Refused, ValidationError, ApiError) as error:
        draft = Draft(values, tuple(_problems(error)))
        return await _page(request, sender, context, draft, once=once, status=400)
    return RedirectResponse(f"/datasets/{answer.id}", 303, render.HEADERS)


async def _sent(request: Request) -> tuple[Values, str]:
    """Fields of the form, and its number, which is a new one where it was meddled with."""
    sent = await request.form()
    values = {name: str(sent[name]).replace("\0", "") for name in FIELDS if isinstance(sent.get(name), str)}
    once = str(sent.get("once", ""))
    return values, drafts.once_of(once)


async def draft_of(visitor: Visitor, context: Gateway, values: Values) -> Draft:
    draft = Draft(values)
    if not draft.is_complete:
        return draft
    try:
        body = drafts.request_of(values)
        async with context.service.unit() as unit:
            prepared = await jobs.prepare(unit, visitor.principal, body)
    except (Refused, ValidationError, ApiError) as error:
        return Draft(values, tuple(_problems(error)))
    final = [
        drafts.problem_at(f"retune.{each.param}", each.message)
        for each in prepared.obstacles
        if each.is_final
    ]
    return Draft(values, tuple(final), body, prepared)


def _problems(error: Exception) -> list[Problem]:
    match error:
        case ValidationError():
            return drafts.problems_of(error)
        case ApiError():
            shown = error.body["error"]
            return [drafts.problem_at(shown["param"], shown["message"] or "")]
        case Refused() | QuotaExceeded():
            return [drafts.problem_at(error.param, error.message)]
    raise error


async def _page(
    request: Request,
    visitor: Visitor,
    context: Gateway,
    draft: Draft,
    *,
    origin: str = "",
    dataset_id: str = "",
    once: str = "",
    status: int = 200,
) -> HTMLResponse:
    shown = await _choices(visitor, context, draft) | await known_of(visitor, context, draft)
    method = drafts.method_of(draft.values)
    used = {each.name for each in drafts.SETTINGS} | {drafts.OPTIONS}
    touched = {each.field for each in draft.problems} | {
        name for name, value in draft.values.items() if value
    }
    body = drafts.as_asked(draft.body) if draft.body and not draft.problems else None
    by_field = {name: [each for each in draft.problems if each.field == name] for name in ("", *FIELDS)}
    return render.page(
        request,
        "new_job.html.jinja",
        visitor,
        status=status,
        draft=draft,
        values={name: draft.values.get(name, "") for name in FIELDS},
        problems=by_field,
        groups=[(name, [*each]) for name, each in groupby(drafts.SETTINGS, key=lambda each: each.group)],
        groups_of_method={each.group for each in drafts.SETTINGS if method in each.methods},
        has_settings=bool(used & touched),
        method=method,
        origin=origin,
        dataset_id=dataset_id,
        once=drafts.once_of(once),
        command=snippets.as_command(body) if body else "",
        curl=snippets.as_curl(body) if body else "",
        python=snippets.as_python(body) if body else "",
        max_upload_bytes=context.settings.max_upload_bytes,
        **shown,
    )


async def _choices(visitor: Visitor, context: Gateway, draft: Draft) -> dict[str, Any]:
    """What may be chosen, and why what may not."""
    tenant, database = visitor.principal.tenant, context.service.database
    listed = await store.list_files(
        database, tenant, purpose="fine-tune", order="desc", after=None, limit=FILES
    )
    bases = await readmodels.list_bases(database, after="", limit=BASES)
    versions = await readmodels.list_models(
        database, tenant, base_model=None, dataset_version=None, base_sha=None, after=None, limit=VERSIONS
    )
    name = draft.values.get("model", "")
    version = next((each for each in versions if name in (each.full_name, each.model_id)), None)
    base = await readmodels.find_base(database, version.base_model if version else name)
    file = await store.find_file(database, draft.values.get("training_file", ""), tenant)
    used = await usage.usage_of(database, tenant, now=database.now())
    return {
        "files": listed,
        "bases": bases,
        "versions": versions,
        "file": file,
        "base": base,
        "is_listed": name in {each.name for each in bases} | {each.full_name for each in versions},
        "methods": [
            (method, drafts.METHODS[method], why_not)
            for method, why_not in drafts.refused_methods(
                base.detail.capabilities if base else None, file
            ).items()
        ],
        "why_not": why_not_submitted(visitor.principal.quotas, used),
    }


def why_not_submitted(quotas: Quotas, used: Mapping[str, float]) -> str:
    """Why the tenant may submit no job now; empty where it may."""
    words = {
        "open_jobs": "{} jobs have not ended, which is all that the tenant may have: wait for one, or cancel one",
        "open_datasets": "{} datasets are being validated, which is all that the tenant may have: wait for one",
        "commands_per_day": "{} commands were sent today, which is all that the tenant may send: wait until tomorrow",
        "cost_per_month": "{} US dollars were charged this month, which is all that may be: wait until the next one",
    }
    for name, text in words.items():
        limit = getattr(quotas, name)
        if limit is not None and used[name] >= limit:
            return text.format(f"{used[name]:,}")
    return ""


async def known_of(visitor: Visitor, context: Gateway, draft: Draft) -> dict[str, Any]:
    """What the platform can say of the job before it is one."""
    if draft.prepared is None:
        return {"pools": (), "dataset": None, "memory": None, "times": (), "resolved": {}}
    tenant, database = visitor.principal.tenant, context.service.database
    spec = draft.prepared.submit.spec
    pools = tuple(pool for pool in await readmodels.list_pools(database) if takes(pool, tenant))
    dataset = await readmodels.find_same_dataset(database, tenant, draft.prepared.datasets[0].spec)
    return {
        "pools": suited_pools(spec.resources, pools),
        "dataset": dataset,
        "memory": draft.prepared.estimates.estimated_memory,
        "times": draft.prepared.estimates.estimated_times,
        "resolved": resolved_by(spec, dataset),
    }


def resolved_by(spec: JobSpec, dataset: model.Dataset | None) -> dict[str, str]:
    """What each number becomes that the recipe leaves open, and why, where the rows are known; by its name."""
    counts = dataset.detail.counts if dataset else None
    if counts is None:
        return {}
    rows, windows = counts.rows, counts.windows
    recipe, reasons = resolve_recipe(
        spec.recipe, rows=rows, windows=windows, num_devices=spec.resources.num_devices
    )
    return reasons | {"steps": f"{num_steps(recipe, windows=windows):,}: of {windows:,} windows an epoch"}


@router.post("/jobs/new/files")
async def upload(request: Request, visitor: Present, context: Context) -> Response:
    """Store a file as the route of programs does; a script gets it as JSON, a form the page with it."""
    sessions.require_own_site(request)

    def require_csrf(sent: FormData) -> None:
        csrf = request.headers.get("x-csrf-token") or sent.get("csrf")
        if isinstance(csrf, UploadFile) or not is_same_key(csrf or "", visitor.csrf):
            raise ApiError(403, "the form is of another session: load the page again", code="csrf_failed")

    stored = await files.receive(
        visitor.principal, context, request, DATASET_PURPOSES, check=require_csrf, beside={"csrf"}
    )
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(f"/jobs/new?training_file={stored.id}", 303, render.HEADERS)
    return JSONResponse(stored.model_dump(mode="json"), headers=render.HEADERS)
