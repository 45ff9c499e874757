"""Check 1: no registered benchmark may fall by more than its margin against the base model's baseline."""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.evaluation import BenchmarkKind, CheckResult, Criterion, Outcome
from schemas.gate import BenchmarkRule
from services.evaluator.gates.checks import decided, not_requested
from services.evaluator.gates.criteria import level_criterion
from services.evaluator.gates.intervals import LEVEL
from services.evaluator.gates.series import Comparison, Series, compare, find_gap, in_points, reaches
from services.evaluator.gates.sizes import items_for

METRICS = {
    BenchmarkKind.MULTIPLE_CHOICE: "accuracy_points",
    BenchmarkKind.TEXT: "next_token_accuracy_points",
    BenchmarkKind.ARC_CHALLENGE: "acc_norm_points",
    BenchmarkKind.HELLASWAG: "acc_norm_points",
    BenchmarkKind.MMLU: "acc_points",
    BenchmarkKind.TRUTHFULQA_MC1: "mc1_points",
    BenchmarkKind.TRUTHFULQA_MC2: "mc2_points",
}
DEFAULT_MARGIN_POINTS = BenchmarkRule().margin_points


@dataclass(frozen=True)
class Scored:
    """A requested benchmark; one that was not run has an empty series."""

    kind: BenchmarkKind
    series: Series
    margin_points: float | None = None
    """Margin that the suite declares; None where it declares none."""


def gate_benchmarks(rule: BenchmarkRule, scored: Mapping[str, Scored]) -> CheckResult:
    if not scored:
        return not_requested("benchmark", "no benchmark is registered")
    criteria, gaps = [], []
    for name, benchmark in sorted(scored.items()):
        if gap := find_gap(benchmark.series):
            gaps.append(f"{name}: {gap}")
        else:
            criteria.append(_criterion(rule, name, benchmark, among=len(scored)))
    return decided("benchmark", criteria, gaps)


def margin_of(rule: BenchmarkRule, declared: float | None) -> float:
    """Return the suite's own margin, where it declares one; a job that is stricter than the default stays so."""
    if declared is None:
        return rule.margin_points
    is_stricter = rule.margin_points < DEFAULT_MARGIN_POINTS
    return min(rule.margin_points, declared) if is_stricter else declared


def _criterion(rule: BenchmarkRule, name: str, benchmark: Scored, *, among: int) -> Criterion:
    margin = margin_of(rule, benchmark.margin_points)
    comparison = compare(benchmark.series, in_points)
    # To pass, every benchmark has to: nothing adds up. To fail, one is enough, so that each has its part of 5 %.
    cautious = (
        compare(benchmark.series, in_points, level=1.0 - (1.0 - LEVEL) / among) if among > 1 else comparison
    )
    outcome = _outcome(margin, comparison, cautious)
    needed = items_for(comparison.count, distance=margin, half_width=_half_width(cautious))
    return level_criterion(
        name,
        METRICS[benchmark.kind],
        comparison,
        comparison.base.value - margin,
        outcome=outcome,
        needed=needed if outcome == "inconclusive" else None,
    )


def _outcome(margin: float, comparison: Comparison, cautious: Comparison) -> Outcome:
    change = comparison.change
    is_within = reaches(change.value, -margin)
    if change.interval.low > -margin or (is_within and _tells(margin, comparison)):
        return "passed"
    if cautious.change.interval.high < -margin or (not is_within and _tells(margin, cautious)):
        return "failed"
    return "inconclusive"


def _tells(margin: float, comparison: Comparison) -> bool:
    return reaches(_half_width(comparison), margin, higher_is_better=False)


def _half_width(comparison: Comparison) -> float:
    return (comparison.change.interval.high - comparison.change.interval.low) / 2.0
