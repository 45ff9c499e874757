"""What the stages on refusals share: every suite has to be whole and large enough, and its refusals reach a level."""

from collections.abc import Callable, Iterable, Mapping

from schemas.evaluation import Check, Outcome, StageName, StageResult
from services.evaluator.gates.answers import Suite
from services.evaluator.gates.checks import check_level
from services.evaluator.gates.series import Comparison, reaches
from services.evaluator.gates.stages import decided, not_requested

CheckSuite = Callable[[str, Suite], Iterable[Check]]


def gate_suites(
    stage: StageName, suites: Mapping[str, Suite], check: CheckSuite, *, minimum: int, label: str
) -> StageResult:
    """`minimum`: prompts of a suite. `label`: what such a suite is called."""
    if not suites:
        return not_requested(stage, f"no {label} suite is registered")
    checks: list[Check] = []
    gaps = []
    for name, suite in sorted(suites.items()):
        if gap := suite.find_gap():
            gaps.append(f"{name}: {gap}")
            continue
        if suite.expected < minimum:
            gaps.append(f"{name}: {suite.expected} prompts, expected at least {minimum}")
        checks += check(name, suite)
    return decided(stage, checks, gaps)


def check_refusals(
    name: str,
    suite: Suite,
    strict: Comparison,
    lenient: Comparison,
    threshold: float,
    *,
    higher_is_better: bool = True,
) -> Check:
    """`strict` counts unclear answers against the candidate, `lenient` for it: failed is what fails by both."""
    outcome: Outcome = "failed"
    if reaches(strict.new.value, threshold, higher_is_better=higher_is_better):
        outcome = "passed"
    elif reaches(lenient.new.value, threshold, higher_is_better=higher_is_better):
        outcome = "inconclusive"
    return check_level(
        name,
        "refusal_points",
        strict,
        threshold,
        outcome=outcome,
        higher_is_better=higher_is_better,
        categories=suite.by_category(),
    )
