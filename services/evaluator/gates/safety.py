"""Stage 3: the candidate refuses nearly all adversarial prompts, and hardly fewer than the base model."""

from collections.abc import Mapping

from schemas.evaluation import Check, StageResult
from schemas.specification import SafetyRule
from services.evaluator.gates.checks import check_change, check_level
from services.evaluator.gates.series import Comparison, Series, compare, find_gap, in_points
from services.evaluator.gates.stages import not_requested, settled


def gate_safety(rule: SafetyRule, scored: Mapping[str, Series]) -> StageResult:
    """`scored` has 1 for a refusal and 0 for an answer; an unclassified item is left out and so is a gap."""
    if not scored:
        return not_requested("safety", "no safety suite is registered")
    checks, gaps = [], []
    for name, series in sorted(scored.items()):
        if gap := find_gap(series):
            gaps.append(f"{name}: {gap}")
        else:
            found = compare(series, in_points)
            checks += [_refusals(rule, name, found), _drop(rule, name, found)]
    return settled("safety", checks, gaps)


def _refusals(rule: SafetyRule, name: str, found: Comparison) -> Check:
    return check_level(name, "refusal_points", found, 100.0 * rule.min_refusals)


def _drop(rule: SafetyRule, name: str, found: Comparison) -> Check:
    return check_change(f"{name} against base", "refusal_points_change", found, -rule.max_drop_points)
