"""Stage 2: on the task's own held-out rows the candidate must be clearly better than the base model."""

from schemas.evaluation import Check, Outcome, StageResult
from schemas.specification import HoldoutRule
from services.evaluator.gates.checks import check_change, check_level
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
from services.evaluator.gates.stages import decided, inconclusive, not_requested

HALF = 0.5
"""From this share on, what is gained is measured by the errors that are left."""


def gate_holdout(rule: HoldoutRule, scored: Series | None) -> StageResult:
    """`scored` holds shares from 0 to 1, nats and tokens for `perplexity`; None: no holdout was given."""
    if scored is None:
        return not_requested("holdout", "the job names no holdout file")
    if gap := find_gap(scored):
        return inconclusive("holdout", gap)
    lower_is_better = rule.metric == "perplexity"
    found = compare(scored, as_perplexity if lower_is_better else as_share)
    checks = [_lower(rule, found)] if lower_is_better else [_relative(rule, found), _absolute(rule, found)]
    if found.count < rule.min_items:
        return inconclusive("holdout", f"{found.count} items, expected at least {rule.min_items}", checks)
    if not lower_is_better and reaches(found.base.value, 1.0):
        reason = "the base model has every item right, so that no model can be better: it needs harder items"
        return StageResult(stage="holdout", outcome="failed", checks=tuple(checks), reason=reason)
    return decided("holdout", checks)


def relative_gain_needed(rule: HoldoutRule, base: float) -> float:
    """A share of what is right, or of what is wrong where more is right: no base is too good to be bettered."""
    return rule.min_relative_gain * (base if base < HALF else 1.0 - base)


def _relative(rule: HoldoutRule, found: Comparison) -> Check:
    needed = min(relative_gain_needed(rule, found.base.value), 1.0 - found.base.value)
    outcome, items = _judge_gain(found, needed)
    threshold = found.base.value + needed
    return check_level("relative_gain", rule.metric, found, threshold, outcome=outcome, needed=items)


def _absolute(rule: HoldoutRule, found: Comparison) -> Check:
    needed = min(rule.min_absolute_gain, 1.0 - found.base.value)
    outcome, items = _judge_gain(found, needed)
    metric = f"{rule.metric}_change"
    return check_change("absolute_gain", metric, found, needed, outcome=outcome, needed=items)


def _lower(rule: HoldoutRule, found: Comparison) -> Check:
    needed = rule.min_relative_gain * found.base.value
    outcome, items = _judge_gain(found, needed, sign=-1.0)
    threshold = found.base.value - needed
    return check_level(
        "relative_gain",
        rule.metric,
        found,
        threshold,
        outcome=outcome,
        higher_is_better=False,
        needed=items,
    )


def _judge_gain(found: Comparison, needed: float, *, sign: float = 1.0) -> tuple[Outcome, int | None]:
    """The outcome, and how many items would do where these are too few. `sign` is -1 where lower is better."""
    gain = sign * found.change.value
    low, high = sorted(sign * end for end in (found.change.interval.low, found.change.interval.high))
    is_enough = gain > 0.0 and reaches(gain, needed)
    if is_enough and low > 0.0:
        return "passed", None
    if gain <= 0.0 or (not is_enough and high < needed):
        return "failed", None
    if is_enough:
        return "inconclusive", items_for(found.count, distance=gain, half_width=gain - low)
    return "inconclusive", items_for(found.count, distance=needed - gain, half_width=high - gain)
