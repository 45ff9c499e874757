"""Checkpoints of a job: the size of each, and what may be done with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from schemas.lifecycle import TERMINAL
from services.gateway import job_readmodels, job_responses, model, readmodels, representations, submission
from services.gateway.deps import Caller, Context, Gateway, invalid_cursor
from services.gateway.page import render
from services.gateway.page.sessions import Sender
from services.gateway.page.views import ModelView, model_view
from services.gateway.routes import checkpoints, evaluations
from services.gateway.routes.jobs import job_of
from services.gateway.trained import CHECKPOINT

router = APIRouter()

ROWS = 100


@dataclass(frozen=True)
class CheckpointView:
    """What is empty of the reasons may be done."""

    answer: job_responses.Checkpoint
    created_at: datetime
    size_bytes: int | None
    """None where the event of its verification is kept no more."""
    version: ModelView | None
    """The model version that it has become."""
    why_not_evaluated: str
    why_not_deployed: str
    why_not_continued: str

    @property
    def continue_address(self) -> str:
        """The form of a job like this one that starts from the checkpoint."""
        return f"/jobs/new?{urlencode({'from': self.answer.fine_tuning_job_id, 'base': self.answer.id})}"

    @property
    def reasons(self) -> list[str]:
        """Each reason once, whatever it forbids."""
        reasons = (self.why_not_evaluated, self.why_not_deployed, self.why_not_continued)
        return [*dict.fromkeys(each for each in reasons if each)]


async def shown(caller: Caller, context: Gateway, job_id: str, after: str | None) -> dict[str, Any]:
    """Return what the tab shows: verified checkpoints that are kept, the newest first. `after`: id of the checkpoint
    that a page begins after. Raises ApiError where it is none of the job."""
    database = context.service.database
    job = await job_of(caller, context, job_id)
    before = checkpoint_of(job_id, after) if after else None
    rows = await readmodels.list_checkpoints(database, job_id, caller.tenant, before=before, limit=ROWS + 1)
    digests = [row.manifest_sha256 for row in rows[:ROWS]]
    sizes = await job_readmodels.find_checkpoint_sizes(database, job_id, digests)
    versions = await job_readmodels.find_models_of_bundles(database, caller.tenant, job_id, digests)
    why_stale = await submission.why_stale(database, job.spec)
    return {
        "checkpoints": views(
            rows[:ROWS], sizes, versions, is_over=job.state in TERMINAL, why_stale=why_stale
        ),
        "after": after,
        "next": representations.checkpoint(rows[ROWS - 1]).id if len(rows) > ROWS else None,
    }


def checkpoint_of(job_id: str, name: str) -> tuple[int, int]:
    """Return attempt and step. Raises ApiError where the name is of no checkpoint of the job."""
    named = CHECKPOINT.fullmatch(name)
    if named is None or named["job_id"] != job_id:
        raise invalid_cursor(name)
    return int(named["attempt"]), int(named["step"])


def views(
    rows: Sequence[model.Checkpoint],
    sizes: dict[str, int],
    versions: dict[str, model.ModelVersion],
    *,
    is_over: bool,
    why_stale: str,
) -> list[CheckpointView]:
    """`sizes` in bytes and `versions` by the digest of the manifest."""
    shown = []
    for row in rows:
        version = versions.get(row.manifest_sha256)
        view = model_view(version) if version else None
        why_not_evaluated = _why_not_evaluated(version, is_over=is_over, why_stale=why_stale)
        no_version = f"no model version yet{'' if why_not_evaluated else ': evaluate it first'}"
        shown.append(
            CheckpointView(
                answer=representations.checkpoint(row),
                created_at=row.created_at,
                size_bytes=sizes.get(row.manifest_sha256),
                version=view,
                why_not_evaluated=why_not_evaluated,
                why_not_deployed=view.why_not_deployed if view else no_version,
                why_not_continued=why_stale,
            )
        )
    return shown


def _why_not_evaluated(version: model.ModelVersion | None, *, is_over: bool, why_stale: str) -> str:
    if why_stale:
        return why_stale
    if version is not None:
        return "its model version is archived" if version.stage == "archived" else ""
    return "" if is_over else "the job is not over: it can be evaluated then, or cancel the job first"


@router.post("/jobs/{job_id}/checkpoints/{checkpoint}/evaluate")
async def evaluate(
    request: Request, sender: Sender, context: Context, job_id: str, checkpoint: str
) -> Response:
    """Register the checkpoint as a version where it is none yet, and run its gate, whose page is live."""
    version = (await checkpoints.register(sender.principal, context, job_id, checkpoint)).retune
    await evaluations.evaluate(sender.principal, context, version.model_id)
    address = f"/models/{version.model_id}/gate"
    if "hx-request" in request.headers:
        return Response(headers={"hx-redirect": address, **render.HEADERS})
    return RedirectResponse(address, 303, render.HEADERS)
