"""What earlier jobs trained, by the names that it has in the API: model versions and checkpoints."""

import re

from schemas.base import BundleRef, StartFrom
from schemas.specification import Recipe
from services.gateway import readmodels, store
from services.gateway.decide import Trained
from services.gateway.model import Checkpoint, Job, ModelVersion, SubmittedSpec
from services.gateway.store import Source
from shared.errors import Refused

CHECKPOINT = re.compile(r"ftckpt-(?P<job_id>.+)-(?P<attempt>[0-9]{1,9})-(?P<step>[0-9]{1,9})")
PREFIXES = ("ft:", "mv-", "ftckpt-")
"""Beginnings of names of model versions, of their ids, and of checkpoints."""
WHY_NOT: dict[str, tuple[str, str]] = {
    "written": ("checkpoint_not_verified", "is not verified yet: try again in a moment"),
    "corrupt": ("checkpoint_corrupt", "is damaged"),
    "expired": ("checkpoint_deleted", "was deleted, as all but the newest two of a job and the best one are"),
}
"""Code of a refusal, and the reason, by the state of a checkpoint."""


def name_of(checkpoint: Checkpoint) -> str:
    return f"ftckpt-{checkpoint.job_id}-{checkpoint.attempt}-{checkpoint.step}"


async def find_trained(source: Source, tenant: str, name: str) -> Trained | None:
    """Return what the name means; None where the tenant has nothing of the name. Raises Refused where no job can
    start from it.
    """
    if match := CHECKPOINT.fullmatch(name):
        return await _of_checkpoint(
            source, tenant, name, match["job_id"], int(match["attempt"]), int(match["step"])
        )
    full_name, _, digest = name.partition("@")
    version = await readmodels.find_model(source, tenant, full_name)
    if version is None:
        return None
    if digest and digest != version.digest:
        message = f"model: version {full_name!r} has digest {version.digest}, found {digest[:80]!r}"
        raise Refused("other_digest", message, param="model")
    return await _of_version(source, tenant, name, version)


async def why_gone(source: Source, tenant: str, spec: SubmittedSpec) -> str:
    """Why a job like one with this spec has nothing to start from any more; "" where it has."""
    start = spec.start_from
    if start is None or start.digest is not None:
        return ""
    bundle = start.bundle
    row = await readmodels.find_checkpoint(source, start.job_id, tenant, bundle.attempt, bundle.step)
    if row is not None and (row.state, row.manifest_sha256) == ("verified", bundle.manifest_sha256):
        return ""
    reason = WHY_NOT[row.state][1] if row is not None and row.state in WHY_NOT else "is not kept any more"
    return f"checkpoint {start.name!r}, which the job starts from, {reason}"


async def why_not_continued(source: Source, original: Job) -> str:
    """Why no job can continue this one; "" where one of its checkpoints is left, or may be of what it continued."""
    if await readmodels.list_checkpoints(source, original.job_id, original.tenant, before=None, limit=1):
        return ""
    reason = "none was verified, or they were deleted. Nearest that works: retry it without from_checkpoint"
    return "" if original.retry_of else f"job {original.job_id!r} has no checkpoint left: {reason}"


async def _of_version(source: Source, tenant: str, name: str, version: ModelVersion) -> Trained:
    if version.stage == "archived":
        message = f"model: version {version.full_name!r} is archived; name one that is in use"
        raise Refused("archived", message, param="model")
    job = await readmodels.find_job(source, version.job_id, tenant)
    if job is None or version.detail.bundle is None:
        message = f"model: version {version.full_name!r} was registered a moment ago: try again"
        raise Refused("not_known_yet", message, param="model")
    return await _trained(source, name, job, version.detail.bundle, version.digest)


async def _of_checkpoint(
    source: Source, tenant: str, name: str, job_id: str, attempt: int, step: int
) -> Trained | None:
    """Return the checkpoint; where it has become a model version, that version is meant: its files stay."""
    row = await readmodels.find_checkpoint(source, job_id, tenant, attempt, step)
    job = await readmodels.find_job(source, job_id, tenant)
    if row is None or job is None:
        return None
    bundle = BundleRef(attempt=attempt, step=step, manifest_sha256=row.manifest_sha256)
    digest = await readmodels.find_digest_of_bundle(source, tenant, job_id, row.manifest_sha256)
    if digest is None and row.state in WHY_NOT:
        code, reason = WHY_NOT[row.state]
        message = f"model: checkpoint {name!r} {reason}{await _nearest(source, tenant, job)}"
        raise Refused(code, message, param="model")
    return await _trained(source, name, job, bundle, digest)


async def _trained(source: Source, name: str, job: Job, bundle: BundleRef, digest: str | None) -> Trained:
    spec = job.spec
    base = await store.find_base(source, spec.base_model) if spec.base_model else None
    if base is None or base.base_sha != spec.base_sha:
        message = (
            f"model: {name!r} was trained on other files than base model {spec.base_model!r} has now, and could not "
            f"be served. Nearest that works: model {spec.base_model!r}"
        )
        raise Refused("stale_base", message, param="model")
    start_from = StartFrom(name=name, job_id=job.job_id, bundle=bundle, digest=digest)
    return Trained(start_from, base, Recipe.model_validate(spec.recipe))


async def _nearest(source: Source, tenant: str, job: Job) -> str:
    if job.fine_tuned_model:
        return f". Nearest that works: {job.fine_tuned_model}"
    newest = await readmodels.list_checkpoints(source, job.job_id, tenant, before=None, limit=1)
    return f". Nearest that works: {name_of(newest[0])}" if newest else ""
