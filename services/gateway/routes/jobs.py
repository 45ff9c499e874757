"""/v1/fine_tuning/jobs, and its alias /v1/fine-tuning/jobs."""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse

from schemas.base import CommandRefused
from schemas.dataset import SubmitDataset
from schemas.job import CancelJob, JobMessage, PauseJob, ResumeJob, RetryJob, SubmitJob
from services.gateway import (
    decide,
    job_readmodels,
    job_responses,
    readmodels,
    representations,
    store,
    submission,
    tables,
    trained,
)
from services.gateway.access import Principal
from services.gateway.decide import Inputs
from services.gateway.deps import (
    Caller,
    Context,
    Gateway,
    invalid_cursor,
    page_size,
    refusal,
)
from services.gateway.errors import ApiError, not_found
from services.gateway.idempotency import Answer, answer_once
from services.gateway.job_readmodels import JobFilter
from services.gateway.model import Job, JsonObject, SubmittedStage
from services.gateway.obstacles import Obstacle, obstacles
from services.gateway.requests import CreateDataset, CreateJob
from services.gateway.responses import Page
from services.gateway.submission import Estimates
from shared.failpoints import failpoint
from shared.messaging.unit import Unit

router = APIRouter()

POLL_SECONDS = 0.25
EXPECTED: dict[type[JobMessage], tuple[str, str]] = {
    CancelJob: ("job_not_active", "one that is not evaluated yet and has not ended"),
    PauseJob: ("job_not_active", "one that is not evaluated yet and has not ended"),
    ResumeJob: ("job_not_paused", "paused"),
    RetryJob: ("job_not_retryable", "failed or cancelled"),
}
"""Code of a refusal, and the states that the command is for."""


@router.post("/jobs", response_model=job_responses.NewJob)
async def create(
    caller: Caller,
    context: Context,
    request: Request,
    body: CreateJob,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
    dry_run: bool = False,
) -> JSONResponse:
    """Two commands with one correlation id: the dataset and the job that waits for it. With `dry_run` nothing is
    submitted: the answer is the job as it would be, or what would refuse it."""
    if dry_run:
        return JSONResponse(await context.dry_run(lambda unit: _submit(unit, caller, context, body)))
    digest = hashlib.sha256(await request.body()).hexdigest()
    return (await submit(caller, context, body, digest=digest, idempotency_key=idempotency_key)).response()


async def submit(
    caller: Principal, context: Gateway, body: CreateJob, *, digest: str, idempotency_key: str | None
) -> Answer:
    """Answer with a new job; of several requests with the same key and digest with one job."""
    async with context.service.unit(correlation_id=uuid4().hex) as unit:
        work = partial(_submit, unit, caller, context, body)
        answer = await answer_once(unit.conn, caller.tenant, idempotency_key, digest, work)
    failpoint("gateway.accepted")
    return answer


@dataclass(frozen=True)
class Prepared:
    """What a request asks for, and what is known against it."""

    submit: SubmitJob
    datasets: list[SubmitDataset]
    obstacles: tuple[Obstacle, ...]
    estimates: Estimates


async def prepare(unit: Unit, caller: Principal, body: CreateJob) -> Prepared:
    """Look at all that is looked at before a job is taken; nothing is written. Raises Refused."""
    job_id = f"ftjob-{uuid4().hex[:16]}"
    dataset_ids = [f"ds-{uuid4().hex[:16]}" for _ in (body, *body.retune.later_stages)]
    inputs = await inputs_of(unit, caller.tenant, body)
    command = decide.job_command(
        body, inputs, tenant=caller.tenant, tier=caller.tier, job_id=job_id, dataset_ids=dataset_ids
    )
    datasets = decide.dataset_commands(body, inputs, tenant=caller.tenant, dataset_ids=dataset_ids)
    policies = [dataset.spec.policy for dataset in datasets]
    known = await submission.known_with(unit.conn, command, policies)
    against = obstacles(command.spec, known)
    command = submission.with_least_memory(command, known)
    same = [await readmodels.find_same_dataset(unit.conn, caller.tenant, each.spec) for each in datasets]
    estimates = await submission.estimates_of(
        unit.conn, command.spec, caller.tenant, policy=policies[0], datasets=same
    )
    return Prepared(command, datasets, against, estimates)


async def _submit(unit: Unit, caller: Principal, context: Gateway, body: CreateJob) -> JsonObject:
    prepared = await prepare(unit, caller, body)
    command, job_id = prepared.submit, prepared.submit.job_id
    decide.refuse_final(prepared.obstacles)
    for dataset in prepared.datasets:
        await tables.note_dataset(unit.conn, dataset)
    await context.send(unit, caller.tenant, *prepared.datasets, command)
    await store.insert_placeholder(unit.conn, command, now=unit.now)
    warnings = submission.as_warnings(prepared.obstacles)
    stages = SubmittedStage.all_of(command)
    shown: dict[str, object] = {"warnings": warnings, "stages": stages} | prepared.estimates.known
    await tables.update_job(unit.conn, job_id, caller.tenant, **shown)
    job = await readmodels.find_job(unit.conn, job_id, caller.tenant)
    base = await readmodels.find_base_detail(unit.conn, command.spec.base_model, command.spec.base_sha)
    assert job is not None, "its row was inserted a moment ago"
    assert base is not None, "the command was made of it"
    return representations.new_job(job, command.spec.base_sha, base).model_dump(mode="json")


async def inputs_of(unit: Unit, tenant: str, body: CreateJob | CreateDataset) -> Inputs:
    files = {name: await store.hold_file(unit.conn, name, tenant) for name in decide.file_ids(body)}
    base = await store.find_base(unit.conn, body.model)
    if base is not None or not body.model.startswith(trained.PREFIXES):
        return Inputs(base, files)
    weights = await trained.find_trained(unit.conn, tenant, body.model)
    if weights is None:
        raise not_found("model", body.model, param="model")
    return Inputs(weights.base, files, weights)


@router.get("/jobs")
async def list_jobs(
    caller: Caller,
    context: Context,
    request: Request,
    after: str | None = None,
    limit: int = 20,
    metadata: str | None = None,
) -> Page[job_responses.Job]:
    """List jobs, newest first. `metadata[key]=value`: those that have it; `metadata=null`: those that have none."""
    size = page_size(limit)
    if metadata not in (None, "null"):
        message = f"metadata: found {metadata[:80]!r}, expected metadata[key]=value, or null"
        raise ApiError(400, message, param="metadata", code="invalid_value")
    pairs = {
        name[len("metadata[") : -1]: value
        for name, value in request.query_params.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    database = context.service.database
    if after is not None and await readmodels.find_job(database, after, caller.tenant) is None:
        raise invalid_cursor(after)
    rows = await job_readmodels.list_jobs(
        database,
        caller.tenant,
        JobFilter(metadata={} if metadata else pairs or None),
        after=after,
        limit=size + 1,
    )
    return representations.page([*map(representations.job, rows)], size=size)


@router.get("/jobs/{job_id}")
async def retrieve(caller: Caller, context: Context, job_id: str) -> job_responses.Job:
    return representations.job(await job_of(caller, context, job_id))


@router.post("/jobs/{job_id}/cancel")
async def cancel(caller: Caller, context: Context, job_id: str) -> job_responses.Job:
    return await _command(caller, context, CancelJob(job_id=job_id, tenant=caller.tenant))


@router.post("/jobs/{job_id}/pause")
async def pause(caller: Caller, context: Context, job_id: str) -> job_responses.Job:
    return await _command(caller, context, PauseJob(job_id=job_id, tenant=caller.tenant))


@router.post("/jobs/{job_id}/resume")
async def resume(caller: Caller, context: Context, job_id: str) -> job_responses.Job:
    return await _command(caller, context, ResumeJob(job_id=job_id, tenant=caller.tenant))


@router.post("/jobs/{job_id}/retry")
async def retry(
    caller: Caller, context: Context, job_id: str, from_checkpoint: bool = False
) -> job_responses.Job:
    """The new job, which is like this one and names it as `retry_of`.

    `from_checkpoint`: it continues from the newest verified checkpoint of this one, where that left off.
    """
    original = await job_of(caller, context, job_id)
    if why := await submission.why_stale(context.service.database, original.spec):
        raise ApiError(400, why, param="fine_tuning_job_id", code="stale_base")
    if from_checkpoint and (gone := await trained.why_not_continued(context.service.database, original)):
        raise ApiError(400, gone, param="from_checkpoint", code="no_checkpoint")
    # What is continued has all that it started from.
    if not from_checkpoint and (
        gone := await trained.why_gone(context.service.database, caller.tenant, original.spec)
    ):
        raise ApiError(400, gone, param="fine_tuning_job_id", code="checkpoint_deleted")
    async with context.service.unit() as unit:
        if gone := await submission.deleted_file_of(unit.conn, original):
            raise ApiError(400, gone, param="fine_tuning_job_id", code="file_deleted")
    new_job_id = f"ftjob-{uuid4().hex[:16]}"
    command = RetryJob(
        job_id=job_id, tenant=caller.tenant, new_job_id=new_job_id, from_checkpoint=from_checkpoint
    )
    if await _sent(caller, context, command, until=lambda job: job is not None, about=new_job_id) is None:
        async with context.service.unit() as unit:
            await store.insert_retry(unit.conn, command, now=unit.now)
    return representations.job(await job_of(caller, context, new_job_id))


async def _command(caller: Caller, context: Gateway, command: JobMessage) -> job_responses.Job:
    """Send it and wait until the job moved; a refusal is the answer."""
    before = await job_of(caller, context, command.job_id)
    await _sent(
        caller,
        context,
        command,
        until=lambda job: job is not None and job.state != before.state,
        about=command.job_id,
    )
    return representations.job(await job_of(caller, context, command.job_id))


async def _sent(
    caller: Caller, context: Gateway, command: JobMessage, *, until: Callable[[Job | None], bool], about: str
) -> Job | None:
    """The job `about` once the condition holds; None if that takes longer than a request waits."""
    async with context.service.unit() as unit:
        command_id = (await context.send(unit, caller.tenant, command))[0]
    deadline = time.monotonic() + context.settings.command_wait_seconds
    while time.monotonic() < deadline:
        outcome = await readmodels.find_outcome(context.service.database, command_id)
        if outcome is not None and outcome.event_type == CommandRefused.type:
            event = CommandRefused.model_validate(outcome.payload)
            raise _refused(command, await job_of(caller, context, command.job_id), event)
        job = await readmodels.find_job(context.service.database, about, caller.tenant)
        if until(job):
            return job
        await asyncio.sleep(POLL_SECONDS)
    return None


def _refused(command: JobMessage, job: Job, event: CommandRefused) -> ApiError:
    problem = refusal(event)
    if problem.status == 404:
        return not_found("fine-tuning job", command.job_id, param="fine_tuning_job_id")
    if event.param == "from_checkpoint":
        return problem
    code, expected = EXPECTED[type(command)]
    message = f"{event.message}; found a job that is {job.state}, expected {expected}"
    return ApiError(problem.status, message, param="fine_tuning_job_id", code=code)


async def job_of(caller: Caller, context: Gateway, job_id: str) -> Job:
    job = await readmodels.find_job(context.service.database, job_id, caller.tenant)
    if job is None:
        raise not_found("fine-tuning job", job_id, param="fine_tuning_job_id")
    return job
