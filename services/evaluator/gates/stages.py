"""What all stages share: their names in order and the results that need no arithmetic."""

from collections.abc import Sequence

from schemas.evaluation import Check, StageName, StageResult

STAGES: tuple[StageName, ...] = ("benchmark", "holdout", "safety", "over_refusal", "judge")


def not_requested(stage: StageName, reason: str) -> StageResult:
    return StageResult(stage=stage, outcome="not_requested", reason=reason)


def inconclusive(stage: StageName, reason: str, checks: Sequence[Check] = ()) -> StageResult:
    return StageResult(stage=stage, outcome="inconclusive", reason=reason, checks=tuple(checks))


def decided(stage: StageName, checks: Sequence[Check]) -> StageResult:
    """Passed if there are checks and each of them is."""
    missed = [check for check in checks if not check.passed]
    if not checks:
        return inconclusive(stage, "nothing was checked")
    return StageResult(
        stage=stage,
        outcome="failed" if missed else "passed",
        checks=tuple(checks),
        reason="; ".join(map(in_words, missed)),
    )


def settled(stage: StageName, checks: Sequence[Check], gaps: Sequence[str]) -> StageResult:
    """A gap makes the stage inconclusive whatever the numbers that are there say."""
    return inconclusive(stage, "; ".join(gaps), checks) if gaps else decided(stage, checks)


def in_words(check: Check) -> str:
    bound = "at least" if check.higher_is_better else "at most"
    base = "" if check.baseline is None else f" (base {check.baseline:.4g})"
    return f"{check.name}: {check.metric} {check.value:.4g}{base}, expected {bound} {check.threshold:.4g}"
