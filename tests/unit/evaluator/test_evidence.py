"""What a verdict was reached by, and checks that prove nothing because their source was trained on."""

import pytest

from schemas.evaluation import CheckResult
from schemas.gate import BenchmarkRule, GateSpec
from services.evaluator.decide.evidence import evidence_of, without_leaks
from services.evaluator.gates.checks import CHECKS
from tests.unit.evaluator.evaluations import a_file, a_suite, an_artifact, known

MMLU, SAFETY = a_suite("mmlu"), a_suite("refusals", None)
BENIGN = a_suite("benign", None, expects="answer")
FILES = (known(MMLU), known(SAFETY), known(BENIGN), known())


def checks(outcome="passed"):
    return tuple(CheckResult(check=check, outcome=outcome) for check in CHECKS)


def outcomes(kept_leaks, given="passed"):
    return [result.outcome for result in without_leaks(checks(given), FILES, kept_leaks)]


def evidence(artifact, files=FILES):
    return evidence_of(artifact, files, harness_version="harness 1", required=("safety", "benchmark"))


@pytest.mark.parametrize(
    ("source", "inconclusive"),
    [
        ("mmlu", ["benchmark"]),
        ("refusals", ["safety"]),
        ("benign", ["over_refusal"]),
        ("holdout", ["holdout", "judge"]),
        ("another", []),
    ],
)
def test_a_check_whose_own_source_was_trained_on_proves_nothing(source, inconclusive):
    results = without_leaks(checks(), FILES, {source: 12})
    assert [result.check for result in results if result.outcome == "inconclusive"] == inconclusive
    assert all(f"12 rows of {source}" in result.reason for result in results if result.outcome != "passed")


def test_no_leak_changes_nothing():
    assert without_leaks(checks(), FILES, {"mmlu": 0}) == checks()


@pytest.mark.parametrize("outcome", ["failed", "inconclusive", "not_requested"])
def test_what_did_not_pass_in_spite_of_leaks_stays(outcome):
    assert outcomes({"mmlu": 1, "holdout": 1}, given=outcome) == [outcome] * len(CHECKS)


def test_evidence_names_every_suite_with_its_digest_and_check():
    record = evidence(an_artifact(benchmarks=(MMLU,), suites=(SAFETY,), holdout=a_file("holdout")))
    assert [
        (suite.check, suite.name, suite.digest, suite.is_checked_against_rows) for suite in record.suites
    ] == [
        ("benchmark", "mmlu", MMLU.digest, True),
        ("safety", "refusals", SAFETY.digest, True),
        ("over_refusal", "benign", BENIGN.digest, False),
    ]
    assert (record.harness_version, record.required_checks) == ("harness 1", ("benchmark", "safety"))
    assert record.holdout_sha256 == a_file("holdout").sha256


def test_a_suite_registered_after_the_dataset_is_marked_as_not_checked_against_its_rows():
    earlier = a_suite("refusals", None, expects="answer")
    record = evidence(an_artifact(benchmarks=(MMLU,), suites=(earlier,)))
    checked = {suite.name: suite.is_checked_against_rows for suite in record.suites}
    assert checked == {"mmlu": True, "refusals": False, "benign": False}


def test_evidence_has_the_job_s_own_rules():
    gate = GateSpec(benchmarks=BenchmarkRule(margin_points=1.5))
    rules = evidence(an_artifact(gate=gate)).rules
    assert rules["benchmarks.margin_points"] == "1.5"
    assert rules["holdout.metric"] == '"exact_match"'


def test_evidence_names_the_evaluation_that_measured_and_rows_that_were_trained_on():
    artifact = an_artifact().model_copy(update={"kept_leaks": {"mmlu": 3}})
    record = evidence_of(
        artifact, FILES, harness_version="harness 1", required=(), measured_by="eval-earlier"
    )
    assert (record.measured_by, record.kept_leaks) == ("eval-earlier", {"mmlu": 3})


def test_no_holdout_is_visible():
    assert evidence(an_artifact()).holdout_sha256 is None
