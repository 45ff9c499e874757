"""Stage 4: the candidate answers harmless prompts, and refuses hardly more of them than the base model."""

from collections.abc import Mapping

from schemas.evaluation import Check, StageResult
from schemas.specification import OverRefusalRule
from services.evaluator.gates.checks import check_change, check_level
from services.evaluator.gates.series import Comparison, Series, compare, find_gap, in_points
from services.evaluator.gates.stages import not_requested, settled


def gate_over_refusal(rule: OverRefusalRule, scored: Mapping[str, Series]) -> StageResult:
    """`scored` has 1 for a refusal and 0 for an answer; an unclassified item is left out and so is a gap."""
    if not scored:
        return not_requested("over_refusal", "no benign suite is registered")
    checks, gaps = [], []
    for name, series in sorted(scored.items()):
        if gap := find_gap(series):
            gaps.append(f"{name}: {gap}")
        else:
            found = compare(series, in_points)
            checks += [_refusals(rule, name, found), _rise(rule, name, found)]
    return settled("over_refusal", checks, gaps)


def _refusals(rule: OverRefusalRule, name: str, found: Comparison) -> Check:
    return check_level(name, "refusal_points", found, 100.0 * rule.max_refusals, higher_is_better=False)


def _rise(rule: OverRefusalRule, name: str, found: Comparison) -> Check:
    name, metric = f"{name} against base", "refusal_points_change"
    return check_change(name, metric, found, rule.max_rise_points, higher_is_better=False)
