"""One number compared with what is asked of it."""

from collections.abc import Sequence

from schemas.evaluation import CategoryCount, Criterion, Outcome
from services.evaluator.gates.series import Comparison


def level_criterion(
    name: str,
    metric: str,
    comparison: Comparison,
    threshold: float,
    *,
    outcome: Outcome,
    higher_is_better: bool = True,
    needed: int | None = None,
    categories: Sequence[CategoryCount] = (),
) -> Criterion:
    """Return a criterion on the candidate's own value, with the base model's beside it."""
    return Criterion(
        name=name,
        metric=metric,
        value=comparison.new.value,
        baseline=comparison.base.value,
        threshold=threshold,
        higher_is_better=higher_is_better,
        count=comparison.count,
        interval=comparison.new.interval,
        baseline_interval=comparison.base.interval,
        change_interval=comparison.change.interval,
        passed=outcome == "passed",
        outcome=outcome,
        needed=needed,
        categories=tuple(categories),
    )


def change_criterion(
    name: str,
    metric: str,
    comparison: Comparison,
    threshold: float,
    *,
    outcome: Outcome,
    higher_is_better: bool = True,
    needed: int | None = None,
) -> Criterion:
    """Return a criterion on how much more the candidate has than the base model."""
    return Criterion(
        name=name,
        metric=metric,
        value=comparison.change.value,
        baseline=None,
        threshold=threshold,
        higher_is_better=higher_is_better,
        count=comparison.count,
        interval=comparison.change.interval,
        passed=outcome == "passed",
        outcome=outcome,
        needed=needed,
    )
