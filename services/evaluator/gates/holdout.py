"""Check 2: on the task's own held-out rows the candidate must be clearly better than the base model."""

from schemas.evaluation import CheckResult, Criterion, Outcome
from schemas.gate import HoldoutRule
from services.evaluator.gates.checks import decided, inconclusive, not_requested
from services.evaluator.gates.criteria import change_criterion, level_criterion
from services.evaluator.gates.series import (
    Comparison,
    Series,
    as_perplexity,
    as_share,
    compare,
    find_gap,
    reaches,
)
from services.evaluator.gates.sizes import items_for

HALF = 0.5
"""Share from which on a gain is measured by the errors that are left."""


def gate_holdout(
    rule: HoldoutRule, scored: Series | None, *, constant_answer: Criterion | None = None
) -> CheckResult:
    """Return the check.

    scored: shares from 0 to 1, nats and tokens for `perplexity`; None: no holdout.
    constant_answer: whether the answers differ; None where the metric needs no answer.
    """
    if scored is None:
        return not_requested("holdout", "the job names no holdout file")
    if gap := find_gap(scored):
        return inconclusive("holdout", gap)
    lower_is_better = rule.metric == "perplexity"
    comparison = compare(scored, as_perplexity if lower_is_better else as_share)
    criteria = (
        [_lower(rule, comparison)]
        if lower_is_better
        else [_relative(rule, comparison), _absolute(rule, comparison)]
    )
    criteria += [] if constant_answer is None else [constant_answer]
    if comparison.count < rule.min_items:
        return inconclusive(
            "holdout", f"{comparison.count} items, expected at least {rule.min_items}", criteria
        )
    if not lower_is_better and reaches(comparison.base.value, 1.0):
        reason = "the base model has every item right, so that no model can be better: it needs harder items"
        return CheckResult(check="holdout", outcome="failed", criteria=tuple(criteria), reason=reason)
    return decided("holdout", criteria)


def relative_gain_needed(rule: HoldoutRule, base: float) -> float:
    """Return a share of what is right, or of what is wrong where more is right: no base is too good to beat."""
    return rule.min_relative_gain * (base if base < HALF else 1.0 - base)


def _relative(rule: HoldoutRule, comparison: Comparison) -> Criterion:
    needed = min(relative_gain_needed(rule, comparison.base.value), 1.0 - comparison.base.value)
    outcome, items = _judge_gain(comparison, needed)
    threshold = comparison.base.value + needed
    return level_criterion("relative_gain", rule.metric, comparison, threshold, outcome=outcome, needed=items)


def _absolute(rule: HoldoutRule, comparison: Comparison) -> Criterion:
    needed = min(rule.min_absolute_gain, 1.0 - comparison.base.value)
    outcome, items = _judge_gain(comparison, needed)
    metric = f"{rule.metric}_change"
    return change_criterion("absolute_gain", metric, comparison, needed, outcome=outcome, needed=items)


def _lower(rule: HoldoutRule, comparison: Comparison) -> Criterion:
    needed = rule.min_relative_gain * comparison.base.value
    outcome, items = _judge_gain(comparison, needed, sign=-1.0)
    threshold = comparison.base.value - needed
    return level_criterion(
        "relative_gain",
        rule.metric,
        comparison,
        threshold,
        outcome=outcome,
        higher_is_better=False,
        needed=items,
    )


def _judge_gain(comparison: Comparison, needed: float, *, sign: float = 1.0) -> tuple[Outcome, int | None]:
    """Return the outcome, and how many items would do where these are too few. `sign` is -1 where lower is better."""
    gain = sign * comparison.change.value
    low, high = sorted(
        sign * end for end in (comparison.change.interval.low, comparison.change.interval.high)
    )
    is_enough = gain > 0.0 and reaches(gain, needed)
    if is_enough and low > 0.0:
        return "passed", None
    if gain <= 0.0 or (not is_enough and high < needed):
        return "failed", None
    if is_enough:
        return "inconclusive", items_for(comparison.count, distance=gain, half_width=gain - low)
    return "inconclusive", items_for(comparison.count, distance=needed - gain, half_width=high - gain)
