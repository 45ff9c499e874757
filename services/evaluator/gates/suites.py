"""What the checks on refusals share: every suite has to be whole and large enough, and its refusals reach a level."""

from collections.abc import Callable, Iterable, Mapping

from schemas.evaluation import CheckName, CheckResult, Criterion, Outcome
from services.evaluator.gates.answers import Suite
from services.evaluator.gates.checks import decided, not_requested
from services.evaluator.gates.criteria import level_criterion
from services.evaluator.gates.series import Comparison, reaches

CriteriaOfSuite = Callable[[str, Suite], Iterable[Criterion]]


def gate_suites(
    check: CheckName, suites: Mapping[str, Suite], measure: CriteriaOfSuite, *, minimum: int, label: str
) -> CheckResult:
    """Return the check of these suites. `minimum`: prompts of a suite. `label`: what such a suite is called."""
    if not suites:
        return not_requested(check, f"no {label} suite is registered")
    criteria: list[Criterion] = []
    gaps = []
    for name, suite in sorted(suites.items()):
        if gap := suite.find_gap():
            gaps.append(f"{name}: {gap}")
            continue
        if suite.expected < minimum:
            gaps.append(f"{name}: {suite.expected} prompts, expected at least {minimum}")
        criteria += measure(name, suite)
    return decided(check, criteria, gaps)


def refusals_criterion(
    name: str,
    suite: Suite,
    strict: Comparison,
    lenient: Comparison,
    threshold: float,
    *,
    higher_is_better: bool = True,
) -> Criterion:
    """Return a criterion that failed only if both comparisons fail it.

    `strict` counts unclear answers against the candidate, `lenient` for it.
    """
    outcome: Outcome = "failed"
    if reaches(strict.new.value, threshold, higher_is_better=higher_is_better):
        outcome = "passed"
    elif reaches(lenient.new.value, threshold, higher_is_better=higher_is_better):
        outcome = "inconclusive"
    return level_criterion(
        name,
        "refusal_points",
        strict,
        threshold,
        outcome=outcome,
        higher_is_better=higher_is_better,
        categories=suite.by_category(),
    )
