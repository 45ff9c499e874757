"""Stage 2: on the task's own held-out rows the candidate must be clearly better than the base model."""

from schemas.evaluation import Check, StageResult
from schemas.specification import HoldoutRule
from services.evaluator.gates.checks import check_change, check_level
from services.evaluator.gates.series import (
    Comparison,
    Series,
    as_perplexity,
    as_share,
    compare,
    find_gap,
)
from services.evaluator.gates.stages import decided, inconclusive, not_requested


def gate_holdout(rule: HoldoutRule, scored: Series | None) -> StageResult:
    """`scored` holds hits for `exact_match`, nats and tokens for `perplexity`; None: no holdout was given."""
    if scored is None:
        return not_requested("holdout", "the job names no holdout file")
    if gap := find_gap(scored):
        return inconclusive("holdout", gap)
    lower_is_better = rule.metric == "perplexity"
    found = compare(scored, as_perplexity if lower_is_better else as_share)
    checks = [_lower(rule, found)] if lower_is_better else [_relative(rule, found), _absolute(rule, found)]
    if found.count < rule.min_items:
        return inconclusive("holdout", f"{found.count} items, expected at least {rule.min_items}", checks)
    return decided("holdout", checks)


def _relative(rule: HoldoutRule, found: Comparison) -> Check:
    threshold = (1.0 + rule.min_relative_gain) * found.base.value
    return _level(rule, found, threshold, higher_is_better=True)


def _lower(rule: HoldoutRule, found: Comparison) -> Check:
    threshold = (1.0 - rule.min_relative_gain) * found.base.value
    return _level(rule, found, threshold, higher_is_better=False)


def _level(rule: HoldoutRule, found: Comparison, threshold: float, *, higher_is_better: bool) -> Check:
    return check_level("relative_gain", rule.metric, found, threshold, higher_is_better=higher_is_better)


def _absolute(rule: HoldoutRule, found: Comparison) -> Check:
    return check_change("absolute_gain", f"{rule.metric}_change", found, rule.min_absolute_gain)
