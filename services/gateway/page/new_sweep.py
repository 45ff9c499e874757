"""A new sweep: its file as text, what is known of it before it begins, and the sweep itself."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError

from schemas.placement import takes
from services.gateway import model, readmodels, store, usage
from services.gateway.deps import Context, Gateway
from services.gateway.errors import ApiError
from services.gateway.model import JsonObject, StoredFile, SubmittedSpec
from services.gateway.obstacles import suited_pools
from services.gateway.page import drafts, new_job, render, snippets, sweep_files
from services.gateway.page.sessions import Present, Sender, Visitor
from services.gateway.page.sweep_files import Problem
from services.gateway.quotas import QuotaExceeded
from services.gateway.requests import CreateSweep
from services.gateway.routes import sweeps
from services.gateway.routes.jobs import job_of
from services.gateway.routes.sweeps import PreparedSweep, sweep_of
from shared.errors import Refused

router = APIRouter()


@dataclass(frozen=True)
class Draft:
    """What was typed, and what is known of the sweep that it asks for."""

    text: str
    is_checked: bool = True
    problems: tuple[Problem, ...] = ()
    body: JsonObject | None = None
    prepared: PreparedSweep | None = None

    @property
    def warnings(self) -> list[str]:
        obstacles = self.prepared.job.obstacles if self.prepared else ()
        return [each.message for each in obstacles if not each.is_final]


@router.get("/sweeps/new")
async def form(
    request: Request,
    visitor: Present,
    context: Context,
    base: str = "",
    training_file: str = "",
    validation_file: str = "",
    origin: Annotated[str, Query(alias="from")] = "",
) -> HTMLResponse:
    """`origin`: a sweep or a job that this one is like."""
    if origin:
        body = await _like(visitor, context, origin)
    else:
        body = sweep_files.example(base, training_file, validation_file)
    text = sweep_files.written(body)
    is_named = bool(origin or (base and training_file and validation_file))
    draft = await _draft(visitor, context, text) if is_named else Draft(text, is_checked=False)
    chosen = {"base": base, "training_file": training_file, "validation_file": validation_file}
    return await _page(request, visitor, context, draft, origin=origin, chosen=chosen)


async def _like(visitor: Visitor, context: Gateway, origin: str) -> JsonObject:
    database, caller = context.service.database, visitor.principal
    if not origin.startswith("sweep-"):
        row = await job_of(caller, context, origin)
        return sweep_files.sweep_over(drafts.like(row, await new_job.policies_of(context, row)))
    sweep = await sweep_of(caller, context, origin)
    policy = await readmodels.find_policy_of_dataset(database, sweep.dataset_id, caller.tenant)
    spec = SubmittedSpec.model_validate(
        sweep.spec.job.model_dump(mode="json", include={*SubmittedSpec.model_fields})
    )
    search = sweep.spec.model_dump(mode="json", exclude={"job", "pruning"}, exclude_defaults=True)
    head = {"name": sweep.name, "algorithm": sweep.spec.algorithm}
    tables = {"job": drafts.request_for(spec, (), (policy,)), "parameters": search.pop("parameters")}
    if sweep.spec.pruning:
        tables["pruning"] = sweep.spec.pruning.model_dump(mode="json")
    return head | search | tables


@router.post("/sweeps/new/check")
async def check(request: Request, sender: Sender, context: Context) -> HTMLResponse:
    """The same page with what is known of the sweep: nothing begins."""
    text, once = await _sent(request)
    return await _page(request, sender, context, await _draft(sender, context, text), once=once)


@router.post("/sweeps")
async def submit(request: Request, sender: Sender, context: Context) -> Response:
    """Begin the sweep; the same form sent again leads to the same sweep."""
    text, once = await _sent(request)
    try:
        body = CreateSweep.model_validate(sweep_files.read(text))
        digest = hashlib.sha256(text.encode()).hexdigest()
        submitted = await sweeps.submit(
            sender.principal, context, body, digest=digest, idempotency_key=f"page-{once}-{digest[:16]}"
        )
    except (Refused, QuotaExceeded, ValidationError, ApiError) as error:
        draft = Draft(text, problems=tuple(_problems(text, error)))
        return await _page(request, sender, context, draft, once=once, status=400)
    return RedirectResponse(f"/sweeps/{submitted.body['id']}", 303, render.HEADERS)


async def _sent(request: Request) -> tuple[str, str]:
    """The text, and the form's number, which is a new one where it was meddled with."""
    sent = await request.form()
    text, once = str(sent.get("text", "")), str(sent.get("once", ""))
    text = text.replace("\r\n", "\n").replace("\0", "")
    return text, drafts.once_of(once)


async def _draft(visitor: Visitor, context: Gateway, text: str) -> Draft:
    try:
        read = sweep_files.read(text)
        if paths := await _paths(visitor, context, text, read):
            return Draft(text, problems=paths)
        body = CreateSweep.model_validate(read)
        async with context.service.unit() as unit:
            prepared = await sweeps.prepare_sweep(unit, visitor.principal, body)
    except (Refused, ValidationError, ApiError) as error:
        return Draft(text, problems=tuple(_problems(text, error)))
    return Draft(text, body=read, prepared=prepared)


async def _paths(visitor: Visitor, context: Gateway, text: str, body: JsonObject) -> tuple[Problem, ...]:
    """What is wrong with files that are named by their paths, and which stored file may be meant."""
    files = await _files(visitor, context)
    problems = []
    for param, path in sweep_files.files_that_are_paths(body):
        name = path.rpartition("/")[2]
        stored = next((each.file_id for each in files if each.filename == name), None)
        what_to_do = f"{stored} has that name" if stored else "the command line uploads it"
        message = f"{param}: found the path {path[:80]!r}, expected the id of a stored file: {what_to_do}"
        problems.append(Problem(sweep_files.line_of(text, param), message))
    return tuple(problems)


def _problems(text: str, error: Exception) -> list[Problem]:
    match error:
        case ValidationError():
            return sweep_files.problems_of(text, error)
        case ApiError():
            shown = error.body["error"]
            return [sweep_files.problem_of(text, shown["param"], shown["message"] or "")]
        case Refused() | QuotaExceeded():
            return [sweep_files.problem_of(text, error.param, error.message)]
    raise error


async def _page(
    request: Request,
    visitor: Visitor,
    context: Gateway,
    draft: Draft,
    *,
    origin: str = "",
    once: str = "",
    status: int = 200,
    chosen: Mapping[str, str] | None = None,
) -> HTMLResponse:
    tenant, database = visitor.principal.tenant, context.service.database
    used = await usage.usage_of(database, tenant, now=database.now())
    body = draft.body if not draft.problems else None
    return render.page(
        request,
        "new_sweep.html.jinja",
        visitor,
        status=status,
        draft=draft,
        files=await _files(visitor, context),
        bases=await readmodels.list_bases(database, after="", limit=new_job.BASES),
        chosen=chosen or {"base": "", "training_file": "", "validation_file": ""},
        origin=origin,
        once=drafts.once_of(once),
        why_not=new_job.why_not_submitted(visitor.principal.quotas, used),
        command=snippets.as_sweep_command(draft.text) if body else "",
        curl=snippets.as_curl(json.loads(json.dumps(body, default=str)), "sweeps") if body else "",
        **await _known(visitor, context, draft),
    )


async def _files(visitor: Visitor, context: Gateway) -> list[StoredFile]:
    return await store.list_files(
        context.service.database,
        visitor.principal.tenant,
        purpose="fine-tune",
        order="desc",
        after=None,
        limit=new_job.FILES,
    )


async def _known(visitor: Visitor, context: Gateway, draft: Draft) -> dict[str, Any]:
    """What the platform can say of the sweep before it is one."""
    if draft.prepared is None:
        return {"pools": (), "dataset": None, "memory": None, "times": (), "file": None}
    prepared, database = draft.prepared, context.service.database
    tenant, job = visitor.principal.tenant, prepared.spec.job
    pools = [each for each in await readmodels.list_pools(database) if takes(each, tenant)]
    dataset: model.Dataset | None = await readmodels.find_same_dataset(
        database, tenant, prepared.job.datasets[0].spec
    )
    return {
        "pools": suited_pools(job.resources, tuple(pools)),
        "dataset": dataset,
        "memory": prepared.job.estimates.estimated_memory,
        "times": prepared.job.estimates.estimated_times,
        "file": await store.find_file(database, job.training_file.file_id, tenant),
    }
