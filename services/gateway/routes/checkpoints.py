"""Routes of checkpoints: any kept one of a job that is over becomes a model version of its own."""

import asyncio
import time

from fastapi import APIRouter

from schemas.base import BundleRef
from schemas.lifecycle import TERMINAL
from schemas.model import RegisterArtifact
from services.gateway import readmodels, representations, submission
from services.gateway.deps import Caller, Context, Gateway
from services.gateway.errors import ApiError, not_found, unavailable
from services.gateway.model import Checkpoint, ModelVersion
from services.gateway.responses import FineTunedModel
from services.gateway.routes.jobs import job_of
from services.gateway.trained import CHECKPOINT, WHY_NOT

router = APIRouter()

POLL_SECONDS = 0.25


@router.post("/jobs/{job_id}/checkpoints/{checkpoint}/register")
async def register(caller: Caller, context: Context, job_id: str, checkpoint: str) -> FineTunedModel:
    """The version that it is or becomes, in `dev`: `evaluate` runs its gate, and then it deploys like any other."""
    job = await job_of(caller, context, job_id)
    row = await _kept(caller, context, job_id, checkpoint)
    known = await _version_of(context, caller.tenant, row)
    if known is not None:
        return representations.fine_tuned_model(known)
    if job.state not in TERMINAL:
        message = (
            f"job {job_id!r} is {job.state}; expected one that is over. Nearest that works: cancel it first"
        )
        raise ApiError(400, message, param="fine_tuning_job_id", code="job_active")
    if row.state in WHY_NOT:
        code, reason = WHY_NOT[row.state]
        raise ApiError(400, f"checkpoint {checkpoint!r} {reason}", param="checkpoint", code=code)
    if why := await submission.why_stale(context.service.database, job.spec):
        raise ApiError(400, why, param="fine_tuning_job_id", code="stale_base")
    version = await _register(caller, context, row)
    if version is None:
        message = f"checkpoint {checkpoint!r} is being copied: ask again, or see the events of job {job_id!r}"
        raise unavailable(message, code="not_decided_yet")
    return representations.fine_tuned_model(version)


async def _kept(caller: Caller, context: Gateway, job_id: str, name: str) -> Checkpoint:
    named = CHECKPOINT.fullmatch(name)
    row = None
    if named is not None and named["job_id"] == job_id:
        attempt, step = int(named["attempt"]), int(named["step"])
        database = context.service.database
        row = await readmodels.find_checkpoint(database, job_id, caller.tenant, attempt, step)
    if row is None:
        raise not_found("checkpoint", name, param="checkpoint")
    return row


async def _version_of(context: Gateway, tenant: str, row: Checkpoint) -> ModelVersion | None:
    database = context.service.database
    return await readmodels.find_model_of_bundle(database, tenant, row.job_id, row.manifest_sha256)


async def _register(caller: Caller, context: Gateway, row: Checkpoint) -> ModelVersion | None:
    """Register the checkpoint and return its version; None if it takes longer than a request waits. Raises ApiError
    where it is refused.
    """
    bundle = BundleRef(attempt=row.attempt, step=row.step, manifest_sha256=row.manifest_sha256)
    command = RegisterArtifact(job_id=row.job_id, tenant=caller.tenant, bundle=bundle)
    async with context.service.unit() as unit:
        command_id = (await context.send(unit, caller.tenant, command))[0]
    deadline = time.monotonic() + context.settings.command_wait_seconds
    while time.monotonic() < deadline:
        if (version := await _version_of(context, caller.tenant, row)) is not None:
            return version
        if (problem := await context.refusal_of(command_id)) is not None:
            raise problem
        await asyncio.sleep(POLL_SECONDS)
    return None
