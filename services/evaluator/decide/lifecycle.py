"""From an artifact and its version to exactly one verdict event."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.base import Message
from schemas.evaluation import (
    BaselineRecorded,
    CheckName,
    CheckResult,
    EvalCheckCompleted,
    EvalFailed,
    EvalInconclusive,
    EvalPassed,
    EvalProgressed,
    EvalStarted,
    Evidence,
)
from schemas.job import Artifact
from schemas.model import ModelRegistered
from services.evaluator.gates.checks import CHECKS, inconclusive, not_requested
from services.evaluator.model import Baseline, Evaluation, EvaluationState, GateResult, Suite

MAX_REASON_CHARS = 1000
CANCELLED = "the job was cancelled"


@dataclass(frozen=True)
class Decision:
    evaluation: Evaluation
    events: tuple[Message, ...] = ()
    starts: bool = False
    """Whether the gate is to be run now."""


def evaluation_id(*identity: str) -> str:
    """Return the id of an evaluation: the same request always has the same one."""
    return "eval-" + hashlib.sha256("/".join(identity).encode()).hexdigest()[:24]


def open_evaluation(
    eval_id: str, artifact: Artifact, version: ModelRegistered | None, *, number: int = 1
) -> Decision:
    """Open the evaluation of an artifact; it begins at once if its version is known already."""
    waiting = Evaluation(eval_id=eval_id, artifact=artifact, number=number)
    return Decision(waiting) if version is None else begin(waiting, version)


def begin(evaluation: Evaluation, version: ModelRegistered) -> Decision:
    if evaluation.state is not EvaluationState.WAITING:
        return Decision(evaluation)
    running = evaluation.to(EvaluationState.RUNNING, version=version)
    return Decision(running, (EvalStarted(**_about(running)),), starts=True)


def abandon(evaluation: Evaluation, *, reason: str) -> Decision:
    """End an evaluation that has no version, without an event of ours: PromotionRefused has said so."""
    if evaluation.state is not EvaluationState.WAITING:
        return Decision(evaluation)
    return Decision(evaluation.to(EvaluationState.ABANDONED, reason=reason))


def cancel(evaluation: Evaluation) -> Decision:
    """End an evaluation whose job was cancelled: nobody waits for the verdict any more."""
    if evaluation.state is EvaluationState.WAITING:
        return abandon(evaluation, reason=CANCELLED)
    return give_up(evaluation, reason=CANCELLED)


def end(evaluation: Evaluation, result: GateResult) -> Decision:
    """Emit every check in order and then the verdict, once."""
    if evaluation.is_over:
        return Decision(evaluation)
    reason = result.reason[:MAX_REASON_CHARS]
    ended = evaluation.to(EvaluationState(result.outcome), checks=result.checks, reason=reason)
    checks = [EvalCheckCompleted(**_about(ended), result=check) for check in result.checks]
    return Decision(ended, (*checks, _verdict(ended, result.evidence)))


def give_up(evaluation: Evaluation, *, reason: str) -> Decision:
    """End an evaluation whose scoring did not come to its end: every check asked for is inconclusive."""
    if evaluation.is_over:
        return Decision(evaluation)
    checks = without_numbers(evaluation.artifact, reason)
    ended = evaluation.to(EvaluationState.INCONCLUSIVE, checks=checks, reason=reason[:MAX_REASON_CHARS])
    check_events = [EvalCheckCompleted(**_about(ended), result=check) for check in checks]
    return Decision(ended, (*check_events, _verdict(ended, None)))


def without_numbers(artifact: Artifact, reason: str) -> tuple[CheckResult, ...]:
    return tuple(
        inconclusive(check, reason[:MAX_REASON_CHARS])
        if is_requested(artifact, check)
        else not_requested(check, "")
        for check in CHECKS
    )


def is_requested(artifact: Artifact, check: CheckName) -> bool:
    asked = {
        "benchmark": artifact.benchmarks,
        "holdout": artifact.holdout,
        "safety": artifact.suites,
        # The artifact names digests alone. Which of them are benign matters only once something is scored.
        "over_refusal": artifact.suites,
        "judge": artifact.gate.judge,
    }
    return bool(asked[check])


def renewed(artifact: Artifact, newest: Iterable[Suite]) -> Artifact:
    """Return the artifact with the suites registered now. One that is not any more stays named: it is a gap."""
    benchmarks, suites = dict(artifact.benchmarks), dict(artifact.suites)
    for suite in newest:
        (suites if suite.kind is None else benchmarks)[suite.name] = suite.digest
    return artifact.model_copy(update={"benchmarks": benchmarks, "suites": suites})


def progressed(evaluation: Evaluation, progress: Mapping[str, Any]) -> EvalProgressed:
    return EvalProgressed(**_about(evaluation), **progress)


def recorded(baseline: Baseline) -> BaselineRecorded:
    return BaselineRecorded(**baseline.model_dump(exclude={"key", "sha256"}))


def _about(evaluation: Evaluation) -> dict[str, Any]:
    version = evaluation.version
    assert version is not None, f"{evaluation.eval_id} runs without a version"
    return {
        "eval_id": evaluation.eval_id,
        "tenant": version.tenant,
        "job_id": version.job_id,
        "model_id": version.model_id,
        "digest": version.digest,
        "base_sha": version.base_sha,
        "number": evaluation.number,
    }


def _verdict(ended: Evaluation, evidence: Evidence | None) -> Message:
    fields: dict[str, Any] = {**_about(ended), "checks": ended.checks, "evidence": evidence}
    if ended.state is EvaluationState.PASSED:
        return EvalPassed(**fields)
    kind = EvalFailed if ended.state is EvaluationState.FAILED else EvalInconclusive
    return kind(**fields, reason=ended.reason)
