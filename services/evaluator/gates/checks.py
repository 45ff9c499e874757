"""What all checks share: their names in order and the results that need no arithmetic."""

from collections.abc import Sequence

from schemas.evaluation import CheckName, CheckResult, Criterion, Outcome

CHECKS: tuple[CheckName, ...] = ("benchmark", "holdout", "safety", "over_refusal", "judge")
RULES_VERSION = 3
"""Version of the rules. Raised when equal scores may be decided otherwise: then old verdicts are not taken over."""


def not_requested(check: CheckName, reason: str) -> CheckResult:
    return CheckResult(check=check, outcome="not_requested", reason=reason)


def inconclusive(check: CheckName, reason: str, criteria: Sequence[Criterion] = ()) -> CheckResult:
    return CheckResult(check=check, outcome="inconclusive", reason=reason, criteria=tuple(criteria))


def decided(check: CheckName, criteria: Sequence[Criterion], gaps: Sequence[str] = ()) -> CheckResult:
    """Return a check that failed if a criterion did, else is inconclusive if one is. It passed only if there are
    criteria and each of them passed.

    A gap makes the check inconclusive whatever the numbers say.
    """
    if gaps:
        return inconclusive(check, "; ".join(gaps), criteria)
    if not criteria:
        return inconclusive(check, "nothing was checked")
    failed = [criterion for criterion in criteria if criterion.outcome == "failed"]
    decisive = failed or [criterion for criterion in criteria if not criterion.passed]
    outcome: Outcome = "failed" if failed else "inconclusive" if decisive else "passed"
    reason = "; ".join(map(in_words, decisive))
    return CheckResult(check=check, outcome=outcome, criteria=tuple(criteria), reason=reason)


def in_words(criterion: Criterion) -> str:
    bound = "at least" if criterion.higher_is_better else "at most"
    base = "" if criterion.baseline is None else f" (base {criterion.baseline:.4g})"
    measured = f"{criterion.name}: {criterion.metric} {criterion.value:.4g}{base}"
    sentence = f"{measured}, expected {bound} {criterion.threshold:.4g}"
    return f"{sentence}, {_doubt(criterion)}" if criterion.outcome == "inconclusive" else sentence


def _doubt(criterion: Criterion) -> str:
    """Return why the number does not decide, and what would."""
    interval = criterion.change_interval or criterion.interval
    measured = "change" if criterion.change_interval else "interval"
    spread = f", {measured} {interval.low:.4g} to {interval.high:.4g}" if interval else ""
    advice = f"; about {criterion.needed} would do" if criterion.needed else ""
    return f"but {criterion.count} items do not decide it{spread}{advice}"
