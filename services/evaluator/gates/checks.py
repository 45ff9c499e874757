"""One number held against what is asked of it."""

from collections.abc import Sequence

from schemas.evaluation import CategoryCount, Check, Outcome
from services.evaluator.gates.series import Comparison


def check_level(
    name: str,
    metric: str,
    comparison: Comparison,
    threshold: float,
    *,
    outcome: Outcome,
    higher_is_better: bool = True,
    needed: int | None = None,
    categories: Sequence[CategoryCount] = (),
) -> Check:
    """The candidate's own value; the base model's stands beside it."""
    return Check(
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


def check_change(
    name: str,
    metric: str,
    comparison: Comparison,
    threshold: float,
    *,
    outcome: Outcome,
    higher_is_better: bool = True,
    needed: int | None = None,
) -> Check:
    """How much more the candidate has than the base model."""
    return Check(
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
