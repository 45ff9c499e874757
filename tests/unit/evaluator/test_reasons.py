"""What checks and verdicts give as their reason, word by word: it is all that people read of a gate at first."""

import pytest

from schemas.evaluation import CheckResult, Criterion, Interval
from schemas.gate import BenchmarkRule, HoldoutRule, OverRefusalRule, SafetyRule
from services.evaluator.gates.benchmark import gate_benchmarks
from services.evaluator.gates.checks import CHECKS, in_words
from services.evaluator.gates.holdout import gate_holdout
from services.evaluator.gates.judge import ControlPair, gate_judge
from services.evaluator.gates.over_refusal import gate_over_refusal
from services.evaluator.gates.safety import gate_safety
from services.evaluator.gates.verdict import Verdict, combine
from tests.unit.evaluator import test_judge_gate as judged
from tests.unit.evaluator.test_gates import changed

FAILED = Criterion(
    name="mmlu",
    metric="accuracy_points",
    value=43.0,
    baseline=46.0,
    threshold=44.0,
    count=100,
    passed=False,
    outcome="failed",
)
UNDECIDED = {"outcome": "inconclusive", "baseline": None}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "mmlu: accuracy_points 43 (base 46), expected at least 44"),
        (
            {"baseline": None, "higher_is_better": False},
            "mmlu: accuracy_points 43, expected at most 44",
        ),
        (UNDECIDED, "mmlu: accuracy_points 43, expected at least 44, but 100 items do not decide it"),
        (
            {**UNDECIDED, "interval": Interval(low=40.0, high=50.0)},
            "mmlu: accuracy_points 43, expected at least 44, but 100 items do not decide it, interval 40 to 50",
        ),
        (
            {
                **UNDECIDED,
                "interval": Interval(low=40.0, high=50.0),
                "change_interval": Interval(low=-3.0, high=1.0),
                "needed": 300,
            },
            (
                "mmlu: accuracy_points 43, expected at least 44, but 100 items do not decide it, change -3 to 1"
                "; about 300 would do"
            ),
        ),
    ],
)
def test_a_criterion_says_what_was_measured_and_what_was_expected(fields, words):
    assert in_words(FAILED.model_copy(update=fields)) == words


def test_a_check_that_was_not_requested_says_what_there_is_not():
    checks = [
        gate_benchmarks(BenchmarkRule(), {}),
        gate_holdout(HoldoutRule(), None),
        gate_safety(SafetyRule(), {}),
        gate_over_refusal(OverRefusalRule(), {}),
    ]
    assert [check.reason for check in checks] == [
        "no benchmark is registered",
        "the job names no holdout file",
        "no safety suite is registered",
        "no benign suite is registered",
    ]


def test_a_base_that_has_everything_right_keeps_its_numbers():
    result = gate_holdout(HoldoutRule(), changed(0, 0, 100, right=100))
    assert [(each.name, each.baseline) for each in result.criteria] == [
        ("relative_gain", 1.0),
        ("absolute_gain", None),
    ]


def test_control_pairs_without_an_answer_are_counted():
    recognised = (True, True, None)
    control_pairs = [ControlPair(str(number), fact) for number, fact in enumerate(recognised)]
    result = gate_judge(
        judged.RULE, judged.pairs((60, judged.CANDIDATE, judged.CANDIDATE)), control_pairs, expected=60
    )
    assert "2 of 4 canary pairs answered" in result.reason
    canaries = next(criterion for criterion in result.criteria if criterion.name == "canaries")
    assert (canaries.value, canaries.passed, canaries.outcome) == (pytest.approx(2 / 3), False, "failed")


def checks(**outcomes) -> list[CheckResult]:
    return [
        CheckResult(
            check=name, outcome=outcomes.get(name, "passed"), reason=outcomes.get(f"{name}_reason", "")
        )
        for name in CHECKS
    ]


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        (
            [],
            Verdict(
                "inconclusive",
                "checks found: none; expected: benchmark, holdout, safety, over_refusal, judge",
            ),
        ),
        (
            checks()[:2],
            Verdict(
                "inconclusive",
                "checks found: benchmark, holdout; expected: benchmark, holdout, safety, over_refusal, judge",
            ),
        ),
        (
            checks(safety="failed", safety_reason="few refused", judge="failed", holdout="inconclusive"),
            Verdict("failed", "safety: few refused; judge: failed"),
        ),
        (
            checks(holdout="inconclusive", holdout_reason="10 items", safety="not_requested"),
            Verdict("inconclusive", "holdout: 10 items; safety: not_requested"),
        ),
        (
            checks(**dict.fromkeys(CHECKS, "not_requested")),
            Verdict("inconclusive", "safety: not_requested"),
        ),
        (checks(), Verdict("passed", "")),
    ],
)
def test_a_verdict_names_the_checks_that_decide(results, verdict):
    assert combine(results, required=("safety",)) == verdict


def test_a_verdict_on_nothing_says_so():
    nothing = checks(**dict.fromkeys(CHECKS, "not_requested"))
    reason = "no check was requested, so nothing is known of the model"
    assert combine(nothing, required=()) == Verdict("inconclusive", reason)
