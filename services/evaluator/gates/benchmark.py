"""Stage 1: no registered benchmark may fall by more than the margin against the base model's baseline."""

from collections.abc import Mapping

from schemas.evaluation import BenchmarkKind, Check, StageResult
from schemas.specification import BenchmarkRule
from services.evaluator.gates.checks import check_level
from services.evaluator.gates.series import Series, compare, find_gap, in_points
from services.evaluator.gates.stages import not_requested, settled

METRICS = {
    BenchmarkKind.MULTIPLE_CHOICE: "accuracy_points",
    BenchmarkKind.TEXT: "next_token_accuracy_points",
    BenchmarkKind.ARC_CHALLENGE: "acc_norm_points",
    BenchmarkKind.HELLASWAG: "acc_norm_points",
    BenchmarkKind.MMLU: "acc_points",
    BenchmarkKind.TRUTHFULQA_MC1: "mc1_points",
    BenchmarkKind.TRUTHFULQA_MC2: "mc2_points",
}


def gate_benchmarks(rule: BenchmarkRule, scored: Mapping[str, tuple[BenchmarkKind, Series]]) -> StageResult:
    """`scored` names every requested benchmark; one that was not run has an empty series."""
    if not scored:
        return not_requested("benchmark", "no benchmark is registered")
    checks, gaps = [], []
    for name, (kind, series) in sorted(scored.items()):
        if gap := find_gap(series):
            gaps.append(f"{name}: {gap}")
        else:
            checks.append(_check(rule, name, kind, series))
    return settled("benchmark", checks, gaps)


def _check(rule: BenchmarkRule, name: str, kind: BenchmarkKind, series: Series) -> Check:
    found = compare(series, in_points)
    return check_level(name, METRICS[kind], found, found.base.value - rule.margin_points)
