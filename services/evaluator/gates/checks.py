"""One number of a comparison held against what is asked of it."""

from schemas.evaluation import Check
from services.evaluator.gates.series import Comparison, reaches


def check_level(
    name: str, metric: str, found: Comparison, threshold: float, *, higher_is_better: bool = True
) -> Check:
    """The candidate's own value; the base model's stands beside it."""
    return Check(
        name=name,
        metric=metric,
        value=found.new.value,
        baseline=found.base.value,
        threshold=threshold,
        higher_is_better=higher_is_better,
        count=found.count,
        interval=found.new.interval,
        baseline_interval=found.base.interval,
        passed=reaches(found.new.value, threshold, higher_is_better=higher_is_better),
    )


def check_change(
    name: str, metric: str, found: Comparison, threshold: float, *, higher_is_better: bool = True
) -> Check:
    """How much more the candidate has than the base model."""
    return Check(
        name=name,
        metric=metric,
        value=found.change.value,
        baseline=None,
        threshold=threshold,
        higher_is_better=higher_is_better,
        count=found.count,
        interval=found.change.interval,
        passed=reaches(found.change.value, threshold, higher_is_better=higher_is_better),
    )
