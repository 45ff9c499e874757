"""What all stages share: their names in order and the results that need no arithmetic."""

from collections.abc import Sequence

from schemas.evaluation import Check, Outcome, StageName, StageResult

STAGES: tuple[StageName, ...] = ("benchmark", "holdout", "safety", "over_refusal", "judge")
RULES_VERSION = 2
"""Raised when equal scores may be decided otherwise: then old verdicts are not taken over."""


def not_requested(stage: StageName, reason: str) -> StageResult:
    return StageResult(stage=stage, outcome="not_requested", reason=reason)


def inconclusive(stage: StageName, reason: str, checks: Sequence[Check] = ()) -> StageResult:
    return StageResult(stage=stage, outcome="inconclusive", reason=reason, checks=tuple(checks))


def decided(stage: StageName, checks: Sequence[Check], gaps: Sequence[str] = ()) -> StageResult:
    """Failed if a check is, else inconclusive if one is; passed only if there are checks and each of them is.

    A gap makes the stage inconclusive whatever the numbers say.
    """
    if gaps:
        return inconclusive(stage, "; ".join(gaps), checks)
    if not checks:
        return inconclusive(stage, "nothing was checked")
    failed = [check for check in checks if check.outcome == "failed"]
    decisive = failed or [check for check in checks if not check.passed]
    outcome: Outcome = "failed" if failed else "inconclusive" if decisive else "passed"
    reason = "; ".join(map(in_words, decisive))
    return StageResult(stage=stage, outcome=outcome, checks=tuple(checks), reason=reason)


def in_words(check: Check) -> str:
    bound = "at least" if check.higher_is_better else "at most"
    base = "" if check.baseline is None else f" (base {check.baseline:.4g})"
    sentence = f"{check.name}: {check.metric} {check.value:.4g}{base}, expected {bound} {check.threshold:.4g}"
    return f"{sentence}, {_doubt(check)}" if check.outcome == "inconclusive" else sentence


def _doubt(check: Check) -> str:
    """Why the number does not decide, and what would."""
    interval = check.change_interval or check.interval
    spread = f", change {interval.low:.4g} to {interval.high:.4g}" if interval else ""
    advice = f"; about {check.needed} would do" if check.needed else ""
    return f"but {check.count} items do not tell{spread}{advice}"
