"""How a model version comes to be, passes the gate and moves on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from schemas.base import BundleRef, Message
from schemas.evaluation import CheckResult, Criterion, EvalFailed, EvalInconclusive, EvalPassed
from schemas.job import Artifact, StagePlan
from schemas.model import (
    ArchiveModel,
    ModelArchived,
    ModelDemoted,
    ModelPromoted,
    ModelRegistered,
    PromoteModel,
    PromotionRefused,
    RegisterArtifact,
    Stage,
)
from services.registry.decide import slots
from services.registry.model import SHORT_DIGEST, Approval, Slot, Verdict, Version, model_id
from shared.errors import Refused


@dataclass(frozen=True)
class Decision:
    version: Version
    slots: tuple[Slot, ...] = ()
    events: tuple[Message, ...] = ()


def register(
    artifact: Artifact, *, digest: str, cancelled: bool, training_template_sha256: str | None = None
) -> Decision:
    """Make a version of an artifact of which a verified copy is at `models/<digest>`.

    training_template_sha256: of its base model.
    """
    version = Version(
        model_id=model_id(artifact.job_id, digest),
        tenant=artifact.tenant,
        job_id=artifact.job_id,
        digest=digest,
        full_name=artifact.full_name + digest[:SHORT_DIGEST],
        kind=artifact.kind,
        rank=artifact.rank,
        base_model=artifact.base_model,
        base_sha=artifact.base_sha,
        dataset_version=artifact.dataset.version,
        config_hash=artifact.config_hash,
        template_sha256=artifact.template_sha256,
        bundle=artifact.bundle,
        # Who cancelled a job did not ask for its model to be served.
        auto_deploy=artifact.auto_deploy and not cancelled,
        started_from=artifact.started_from,
        best_valid_loss=artifact.best_valid_loss,
        artifact=Artifact.model_validate(artifact.model_dump()),
    )
    return Decision(version, events=(_registered(version, training_template_sha256),))


def artifact_of_checkpoint(
    command: RegisterArtifact, bundle: BundleRef, job_versions: Sequence[Version]
) -> Artifact:
    """Return the artifact of another checkpoint of the job that has made these versions.

    Nobody waits for it, so nothing deploys it. Raises Refused where the job is not the tenant's, has made no version,
    or one of this checkpoint already.
    """
    own = [version for version in job_versions if version.tenant == command.tenant]
    artifact = next((version.artifact for version in own if version.artifact is not None), None)
    if artifact is None:
        message = (
            f"job {command.job_id} of tenant {command.tenant} has made no model version since artifacts are kept, "
            "and without one nothing says how its checkpoints are evaluated"
        )
        raise Refused("no_model", message, param="job_id")
    same = next((version for version in own if version.bundle == bundle), None)
    if same is not None:
        message = f"step {bundle.step} of attempt {bundle.attempt} is {_name(same)} already"
        raise Refused("registered", message, param="bundle")
    of_bundle = {"bundle": bundle, "auto_deploy": False, "best_valid_loss": None}
    return artifact.model_copy(update=_of_stage(artifact, bundle) | of_bundle)


def _of_stage(artifact: Artifact, bundle: BundleRef) -> dict[str, object]:
    """Return the lineage of a checkpoint of a job with stages: no later stage than its own has trained it."""
    trained: list[StagePlan] = []
    for stage in artifact.stages:
        trained.append(stage)
        if bundle.step <= sum(each.num_steps for each in trained):
            break
    if not trained:
        return {}
    own = trained[-1]
    return {"stages": tuple(trained), "dataset": own.dataset, "config_hash": own.config_hash}


def same_weights(version: Version) -> PromotionRefused:
    """Refuse `version`, of a checkpoint whose weights are, byte for byte, those of a version that its job has."""
    checkpoint = f"step {version.bundle.step} of attempt {version.bundle.attempt}"
    return _refused(
        version, "registered", f"{checkpoint} has the weights of {_name(version)}, and is that one"
    )


def refuse_artifact(artifact: Artifact, *, reason: str) -> PromotionRefused:
    """Report that there is no version: the artifact could not be copied or is not what it should be."""
    return PromotionRefused(
        job_id=artifact.job_id, tenant=artifact.tenant, model_id=None, code="artifact", message=reason
    )


def on_eval_passed(version: Version, slot: Slot, passed: EvalPassed, *, current_sha: str | None) -> Decision:
    """Answer each pass by ModelPromoted or PromotionRefused. `slot` is the version's full name."""
    if _is_outdated(version, passed):
        return Decision(version, events=(_refused(version, "outdated", _why_outdated(version, passed)),))
    known = replace(version, verdict=_verdict_of(passed, "passed"))
    if obstacle := _obstacle(version, passed, current_sha):
        return Decision(known, events=(_refused(version, *obstacle),))
    if version.is_gated:
        again = replace(known, eval_id=passed.eval_id)
        return Decision(again, events=(_promoted(again),))
    staged = known.to(Stage.STAGING, eval_id=passed.eval_id)
    if not staged.auto_deploy:
        return Decision(staged, events=(_promoted(staged),))
    deployment = slots.approve(slot, staged, job_id=staged.job_id)
    return Decision(staged, (deployment.slot,), (_promoted(staged), *deployment.events))


def on_eval_failed(version: Version, serving: Sequence[Slot], failed: EvalFailed) -> Decision:
    """Return the version to `dev`, and empty every slot that serves it. `serving`: those slots."""
    if _is_outdated(version, failed):
        return Decision(version)
    known = replace(version, verdict=_verdict_of(failed, "failed", failed.reason))
    if not version.is_gated or version.archived_at is not None:
        return Decision(known)
    reason = f"{version.model_id} {gate_summary(_newest(known))}"
    withdrawals = [slots.withdraw(slot, reason=reason) for slot in serving]
    return Decision(
        known.to(Stage.DEV, approval=None),
        tuple(withdrawal.slot for withdrawal in withdrawals),
        (
            _demoted(version, failed, reason),
            *(event for withdrawal in withdrawals for event in withdrawal.events),
        ),
    )


def on_eval_inconclusive(version: Version, inconclusive: EvalInconclusive) -> Decision:
    """Keep the numbers. What is served continues: a judge that is away says nothing against a model.

    But nothing new is approved on it: `require_gated` and `may_be_served` ask the newest verdict.
    """
    if _is_outdated(version, inconclusive):
        return Decision(version)
    verdict = _verdict_of(inconclusive, "inconclusive", inconclusive.reason)
    return Decision(replace(version, verdict=verdict))


def promote(version: Version, command: PromoteModel, *, current_sha: str | None) -> Decision:
    """Approve a staged version for production. Raises Refused."""
    require_gated(version)
    require_current(version, current_sha)
    approval = _approval_of(version, command)
    promoted = version if version.stage is Stage.PRODUCTION else version.to(Stage.PRODUCTION)
    approved = replace(promoted, approval=approval)
    return Decision(approved, events=(_promoted(approved),))


def _approval_of(version: Version, command: PromoteModel) -> Approval:
    """Return the approval. Raises Refused where nothing shows a gain, and nobody answers for that with a reason."""
    if version.has_holdout:
        return Approval(command.approved_by, command.reason)
    if not command.accept_without_holdout:
        raise Refused(
            "no_holdout",
            f"{_name(version)} was gated without a holdout: nothing shows that it got better at its task. Train it "
            "with one, or approve it with accept_without_holdout and a reason",
            param="accept_without_holdout",
        )
    if not command.reason.strip():
        raise Refused("no_reason", "reason: expected why this needs no holdout, found none", param="reason")
    return Approval(command.approved_by, command.reason, accepts_no_holdout=True)


def archive(version: Version, serving: Sequence[Slot], command: ArchiveModel, *, now: datetime) -> Decision:
    """Put a version away for good and empty the slots that serve it. Raises Refused."""
    if version.archived_at is not None:
        raise Refused(
            "archived", f"{_name(version)} is archived already, since {version.archived_at:%Y-%m-%d}"
        )
    withdrawals = [slots.withdraw(slot, reason=f"{version.model_id} was archived") for slot in serving]
    fact = ModelArchived(
        model_id=version.model_id,
        tenant=version.tenant,
        job_id=version.job_id,
        digest=version.digest,
        full_name=version.full_name,
    )
    return Decision(
        replace(version, archived_at=now),
        tuple(withdrawal.slot for withdrawal in withdrawals),
        (fact, *(event for withdrawal in withdrawals for event in withdrawal.events)),
    )


def require_gated(version: Version) -> None:
    """Raise Refused unless the version's newest evaluation passed and it is not archived."""
    if version.archived_at is not None:
        raise Refused("archived", f"{_name(version)} is archived")
    if not version.is_gated:
        gate_result = "was not evaluated" if version.verdict is None else gate_summary(version.verdict)
        raise Refused(
            "not_gated",
            f"{_name(version)} is in stage dev: it {gate_result}. Expected: an evaluation that passed",
        )
    if not version.may_be_served:
        raise Refused(
            "not_gated", f"{_name(version)}: its newest evaluation {gate_summary(_newest(version))}"
        )


def require_current(version: Version, current_sha: str | None) -> None:
    """Raise Refused if the base model's files are not those that the version was trained on."""
    if version.base_sha != current_sha:
        raise Refused("stale", f"{_name(version)} {_stale(version, current_sha)}")


def gate_summary(verdict: Verdict) -> str:
    """Say which checks did not pass, with their numbers: `failed in evaluation ev-1: check safety failed (…)`."""
    summaries = "; ".join(_check_summary(check) for check in verdict.checks if _decides(check))
    return f"{verdict.outcome} in evaluation {verdict.eval_id}: {summaries or verdict.reason or 'no check was run'}"


def _verdict_of(
    event: EvalPassed | EvalFailed | EvalInconclusive,
    outcome: Literal["passed", "failed", "inconclusive"],
    reason: str = "",
) -> Verdict:
    return Verdict(event.eval_id, outcome, event.checks, reason, event.number)


def _newest(version: Version) -> Verdict:
    assert version.verdict is not None, f"{version.model_id} is {version.stage} without a verdict"
    return version.verdict


def _is_outdated(version: Version, event: EvalPassed | EvalFailed | EvalInconclusive) -> bool:
    """Return whether a newer verdict is known: they have different keys, so an older one may come later."""
    return version.verdict is not None and event.number < version.verdict.number


def _why_outdated(version: Version, event: EvalPassed) -> str:
    newest = _newest(version)
    return (
        f"{_name(version)}: evaluation {event.eval_id} (number {event.number}) passed, "
        f"{newest.eval_id} (number {newest.number}) {newest.outcome} since"
    )


def _decides(check: CheckResult) -> bool:
    return check.outcome in ("failed", "inconclusive")


def _check_summary(check: CheckResult) -> str:
    numbers = ", ".join(_criterion_summary(criterion) for criterion in check.criteria if not criterion.passed)
    detail = numbers or check.reason or "no reason given"
    return f"check {check.check} {check.outcome} ({detail})"


def _criterion_summary(criterion: Criterion) -> str:
    bound = "at least" if criterion.higher_is_better else "at most"
    base = "" if criterion.baseline is None else f", base {criterion.baseline:.4g}"
    measurement = f"{criterion.name} {criterion.metric} {criterion.value:.4g}"
    return f"{measurement}, expected {bound} {criterion.threshold:.4g}{base}, n={criterion.count}"


def _obstacle(version: Version, passed: EvalPassed, current_sha: str | None) -> tuple[str, str] | None:
    if (passed.digest, passed.base_sha) != (version.digest, version.base_sha):
        return "mismatch", (
            f"evaluation {passed.eval_id} is about {passed.digest[:12]} on base {passed.base_sha[:12]}, "
            f"{_name(version)} is {version.digest[:12]} on base {version.base_sha[:12]}"
        )
    if version.archived_at is not None:
        return "archived", f"{_name(version)} was archived"
    if version.base_sha != current_sha:
        return "stale", f"{_name(version)} {_stale(version, current_sha)}"
    return None


def _stale(version: Version, current_sha: str | None) -> str:
    base_state = "is not registered" if current_sha is None else f"has sha {current_sha[:12]} now"
    return f"was trained on base {version.base_model} with sha {version.base_sha[:12]}, which {base_state}"


def _name(version: Version) -> str:
    return f"model {version.full_name} ({version.model_id})"


def _registered(version: Version, training_template_sha256: str | None) -> ModelRegistered:
    return ModelRegistered(
        model_id=version.model_id,
        tenant=version.tenant,
        job_id=version.job_id,
        digest=version.digest,
        full_name=version.full_name,
        kind=version.kind,
        rank=version.rank,
        base_model=version.base_model,
        base_sha=version.base_sha,
        dataset_version=version.dataset_version,
        config_hash=version.config_hash,
        template_sha256=version.template_sha256,
        bundle=version.bundle,
        training_template_sha256=training_template_sha256,
        started_from=version.started_from,
        best_valid_loss=version.best_valid_loss,
        stages=version.artifact.stages if version.artifact else (),
    )


def _promoted(version: Version) -> ModelPromoted:
    assert version.eval_id is not None, f"{version.model_id} is {version.stage} without an evaluation"
    approval = version.approval
    return ModelPromoted(
        model_id=version.model_id,
        tenant=version.tenant,
        job_id=version.job_id,
        digest=version.digest,
        full_name=version.full_name,
        stage=version.stage,
        eval_id=version.eval_id,
        has_holdout=version.has_holdout,
        approved_by=approval.approved_by if approval else None,
        approval_reason=approval.reason if approval else "",
        accepted_without_holdout=approval.accepts_no_holdout if approval else False,
    )


def _demoted(version: Version, failed: EvalFailed, reason: str) -> ModelDemoted:
    return ModelDemoted(
        model_id=version.model_id,
        tenant=version.tenant,
        job_id=version.job_id,
        digest=version.digest,
        full_name=version.full_name,
        eval_id=failed.eval_id,
        reason=reason,
    )


def _refused(version: Version, code: str, message: str) -> PromotionRefused:
    return PromotionRefused(
        job_id=version.job_id, tenant=version.tenant, model_id=version.model_id, code=code, message=message
    )
