import itertools
import math

import pytest

from schemas.evaluation import BenchmarkKind, StageResult
from schemas.specification import BenchmarkRule, HoldoutRule, SafetyRule
from services.evaluator.gates.benchmark import gate_benchmarks
from services.evaluator.gates.holdout import gate_holdout
from services.evaluator.gates.safety import gate_safety
from services.evaluator.gates.series import Item, Series, compare, in_points
from services.evaluator.gates.stages import STAGES
from services.evaluator.gates.verdict import combine

CHOICE = BenchmarkKind.MULTIPLE_CHOICE


def items(hits: int, count: int) -> tuple[Item, ...]:
    return tuple(Item(f"{number:05d}", float(number < hits)) for number in range(count))


def series(base: int, new: int, count: int) -> Series:
    return Series(expected=count, base=items(base, count), new=items(new, count))


def tokens(nats_per_token: float, count: int) -> tuple[Item, ...]:
    return tuple(Item(f"{number:05d}", nats_per_token * 7, 7.0) for number in range(count))


@pytest.mark.parametrize(
    ("base", "new", "count", "margin", "outcome"),
    [
        (600, 600, 1000, 2.0, "passed"),
        (600, 580, 1000, 2.0, "passed"),  # exactly the margin below
        (600, 579, 1000, 2.0, "failed"),
        (290, 270, 1000, 2.0, "passed"),  # 29.0 - 2.0, which floats do not hit exactly
        (600, 1000, 1000, 0.0, "passed"),
        (600, 599, 1000, 0.0, "failed"),
        (0, 0, 1000, 2.0, "passed"),
        (1000, 980, 1000, 2.0, "passed"),
        (1000, 979, 1000, 2.0, "failed"),
        (3, 2, 3, 33.4, "passed"),
        (3, 2, 3, 33.3, "failed"),
    ],
)
def test_benchmark_may_fall_by_the_margin_and_no_more(base, new, count, margin, outcome):
    result = gate_benchmarks(
        BenchmarkRule(margin_points=margin), {"mmlu": (CHOICE, series(base, new, count))}
    )
    assert result.outcome == outcome
    check = result.checks[0]
    assert (check.value, check.baseline) == pytest.approx((100 * new / count, 100 * base / count))
    assert check.threshold == pytest.approx(100 * base / count - margin)
    assert check.count == count


def test_one_fallen_benchmark_fails_the_stage_and_keeps_every_number():
    scored = {"a": (CHOICE, series(50, 50, 100)), "b": (CHOICE, series(50, 40, 100))}
    result = gate_benchmarks(BenchmarkRule(), scored)
    assert result.outcome == "failed"
    assert [(check.name, check.passed) for check in result.checks] == [("a", True), ("b", False)]
    assert result.reason == "b: accuracy_points 40 (base 50), expected at least 48"


def test_text_benchmark_weighs_rows_by_their_tokens():
    base = (Item("1", 1.0, 1.0), Item("2", 0.0, 99.0))
    result = gate_benchmarks(BenchmarkRule(), {"text": (BenchmarkKind.TEXT, Series(2, base, base))})
    assert result.checks[0].value == pytest.approx(1.0)
    assert result.checks[0].metric == "next_token_accuracy_points"


@pytest.mark.parametrize(
    ("base", "new", "count", "outcome"),
    [
        (20, 21, 100, "passed"),  # 5 % relative and 0.01 absolute, both exactly
        (20, 20, 100, "failed"),
        (100, 105, 500, "passed"),
        (100, 104, 500, "failed"),
        (2, 3, 1000, "failed"),  # +50 % relative, but 0.001 absolute
        (0, 10, 1000, "passed"),  # nothing before: 0.01 absolute decides
        (0, 9, 1000, "failed"),
        (0, 0, 100, "failed"),
        (100, 100, 100, "failed"),  # perfect before: there is nothing to gain
        (96, 100, 100, "failed"),
        (95, 100, 100, "passed"),
        (10, 40, 50, "passed"),
        (10, 40, 49, "inconclusive"),  # too few items to say
    ],
)
def test_exact_match_needs_relative_and_absolute_gain_on_enough_items(base, new, count, outcome):
    assert gate_holdout(HoldoutRule(), series(base, new, count)).outcome == outcome


@pytest.mark.parametrize(
    ("base", "new", "count", "outcome"),
    [
        (10.0, 9.5, 50, "passed"),  # exactly 5 % lower
        (10.0, 9.5001, 50, "failed"),
        (10.0, 9.0, 50, "passed"),
        (10.0, 10.0, 50, "failed"),
        (10.0, 1e9, 50, "failed"),
        (1e9, 9.4e8, 50, "passed"),
        (10.0, 5.0, 49, "inconclusive"),
    ],
)
def test_perplexity_needs_to_be_five_percent_lower(base, new, count, outcome):
    scored = Series(count, tokens(math.log(base), count), tokens(math.log(new), count))
    result = gate_holdout(HoldoutRule(metric="perplexity"), scored)
    assert result.outcome == outcome
    assert result.checks[0].value == pytest.approx(new)
    assert not result.checks[0].higher_is_better


def test_perplexity_beyond_floats_is_a_failure_not_a_crash():
    scored = Series(50, tokens(2.0, 50), tokens(1e6, 50))
    assert gate_holdout(HoldoutRule(metric="perplexity"), scored).outcome == "failed"


@pytest.mark.parametrize(
    ("base", "new", "count", "outcome"),
    [
        (95, 95, 100, "passed"),
        (95, 94, 100, "failed"),
        (19, 19, 20, "passed"),
        (97, 95, 100, "passed"),  # exactly 2 points below base
        (98, 95, 100, "failed"),  # enough refusals, but 3 points fewer than the base model
        (0, 95, 100, "passed"),
        (100, 98, 100, "passed"),
        (100, 97, 100, "failed"),
        (0, 0, 100, "failed"),
    ],
)
def test_safety_needs_the_share_and_no_drop(base, new, count, outcome):
    result = gate_safety(SafetyRule(), {"suite": series(base, new, count)})
    assert result.outcome == outcome
    assert [check.metric for check in result.checks] == ["refusal_points", "refusal_points_change"]


def gap_of(found: Series) -> str:
    return gate_benchmarks(BenchmarkRule(), {"x": (CHOICE, found)}).reason


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Series(0, (), ()), "no items"),
        (Series(100, (), ()), "base: 0 of 100 items scored"),
        (Series(100, items(50, 100), items(50, 99)), "candidate: 99 of 100 items scored"),
        (Series(100, items(50, 99), items(50, 100)), "base: 99 of 100 items scored"),
        (Series(2, items(1, 2), (Item("00000", 1.0), Item("00000", 1.0))), "candidate: 1 of 2 items scored"),
        (Series(2, items(1, 2), (Item("00000", 1.0), Item("other", 1.0))), "different items"),
        (Series(2, items(1, 2), (Item("00000", math.nan), Item("00001", 1.0))), "item 00000 scored nan"),
        (Series(2, items(1, 2), (Item("00000", 1.0, 0.0), Item("00001", 1.0))), "item 00000 scored 1.0/0.0"),
    ],
)
def test_half_results_never_pass_at_any_stage(found, reason):
    results = [
        gate_benchmarks(BenchmarkRule(), {"x": (CHOICE, found)}),
        gate_holdout(HoldoutRule(), found),
        gate_safety(SafetyRule(), {"x": found}),
    ]
    assert [result.outcome for result in results] == ["inconclusive"] * 3
    assert all(reason in result.reason for result in results)


@pytest.mark.parametrize("scored", [0, 1, 25, 49, 50, 99])
def test_a_perfect_candidate_killed_at_any_item_is_inconclusive(scored):
    found = Series(100, items(0, 100), items(100, 100)[:scored])
    assert gate_holdout(HoldoutRule(), found).outcome == "inconclusive"


def test_a_gap_in_one_suite_is_inconclusive_even_where_the_others_pass():
    scored = {"a": series(95, 100, 100), "b": Series(100, items(95, 100), items(99, 99))}
    result = gate_safety(SafetyRule(), scored)
    assert result.outcome == "inconclusive"
    assert {check.name for check in result.checks} == {"a", "a against base"}


def test_what_nobody_asked_for_is_not_requested():
    assert gate_benchmarks(BenchmarkRule(), {}).outcome == "not_requested"
    assert gate_holdout(HoldoutRule(), None).outcome == "not_requested"
    assert gate_safety(SafetyRule(), {}).outcome == "not_requested"


class TestIntervals:
    def test_contain_the_value_and_narrow_with_more_items(self):
        narrow, wide = (compare(series(half, half, 2 * half), in_points) for half in (2000, 20))
        for found in (narrow, wide):
            assert found.new.interval.low < found.new.value < found.new.interval.high
        assert _width(narrow.new.interval) < _width(wide.new.interval) / 5

    def test_have_the_width_of_the_binomial(self):
        found = compare(series(500, 500, 1000), in_points)
        assert _width(found.new.interval) == pytest.approx(2 * 1.96 * 100 * math.sqrt(0.25 / 1000), rel=0.1)

    def test_of_a_change_are_paired(self):
        """Equal answers item by item leave no doubt about the difference."""
        found = compare(series(500, 500, 1000), in_points)
        assert (found.change.interval.low, found.change.interval.high) == (0.0, 0.0)

    def test_are_the_same_every_time_and_in_any_order(self):
        once = compare(series(30, 60, 100), in_points)
        shuffled = Series(100, items(30, 100)[::-1], items(60, 100))
        assert compare(shuffled, in_points) == once


def _width(interval):
    return interval.high - interval.low


def stage(name, outcome):
    return StageResult(stage=name, outcome=outcome, reason="" if outcome == "passed" else f"{name} {outcome}")


def verdict(*given, required=(), **outcomes):
    """Of stages that passed, but for the judge, which was not asked; `given` is in the order of the stages."""
    usual = dict.fromkeys(STAGES, "passed") | {"judge": "not_requested"}
    named = usual | dict(zip(STAGES, given, strict=False)) | outcomes
    return combine([stage(*pair) for pair in named.items()], required=required).outcome


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("outcome", ["failed", "inconclusive"])
def test_one_stage_that_did_not_pass_decides(name, outcome):
    assert verdict(**{name: outcome}) == outcome


def test_every_combination_passes_only_if_all_that_was_asked_passed():
    outcomes = ("passed", "failed", "inconclusive", "not_requested")
    for given in itertools.product(outcomes, repeat=len(STAGES)):
        asked = [outcome for outcome in given if outcome != "not_requested"]
        expected = bool(asked) and set(asked) == {"passed"}
        assert (verdict(*given) == "passed") is expected, given


def test_a_known_failure_outweighs_missing_evidence():
    assert verdict(benchmark="failed", safety="inconclusive") == "failed"


@pytest.mark.parametrize("name", STAGES)
def test_a_required_stage_that_nobody_asked_for_is_missing_evidence(name):
    assert verdict(**{name: "not_requested"}, required=(name,)) == "inconclusive"


def test_nothing_asked_is_no_pass():
    assert verdict(*["not_requested"] * len(STAGES)) == "inconclusive"


@pytest.mark.parametrize("names", [(), ("benchmark",), ("benchmark", "holdout", "safety"), ("judge",) * 5])
def test_a_missing_stage_is_no_pass(names):
    found = combine([stage(name, "passed") for name in names], required=())
    assert found.outcome == "inconclusive"
