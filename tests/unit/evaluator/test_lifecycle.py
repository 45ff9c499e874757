from hashlib import sha256

import pytest

from schemas.evaluation import (
    BaselineRecorded,
    BenchmarkKind,
    CheckResult,
    EvalCheckCompleted,
    EvalFailed,
    EvalInconclusive,
    EvalPassed,
    EvalStarted,
)
from services.evaluator.decide import lifecycle
from services.evaluator.decide.evidence import evidence_of
from services.evaluator.gates.checks import CHECKS
from services.evaluator.model import TRANSITIONS, Baseline, Evaluation, EvaluationState
from tests.builders import a_sha
from tests.moves import moves_of
from tests.unit.evaluator.evaluations import a_file, a_result, a_suite, a_version, an_artifact, an_evaluation

PASSED = [CheckResult(check=check, outcome="passed") for check in CHECKS]


def kinds(decision):
    return [type(event) for event in decision.events]


def test_an_artifact_without_its_version_waits():
    decision = lifecycle.open_evaluation("eval-1", an_artifact(), None)
    assert (decision.evaluation.state, decision.events, decision.starts) == (
        EvaluationState.WAITING,
        (),
        False,
    )


def test_it_has_its_number_among_those_of_its_job():
    artifact = an_artifact()
    for number, given in ((1, {}), (3, {"number": 3})):
        opened = lifecycle.open_evaluation("eval-1", artifact, None, **given).evaluation
        assert opened == Evaluation(eval_id="eval-1", artifact=artifact, number=number)


@pytest.mark.parametrize("version_first", [True, False])
def test_either_order_of_artifact_and_version_starts_it_once(version_first):
    artifact = an_artifact()
    version = a_version(artifact)
    decision = lifecycle.open_evaluation("eval-1", artifact, version if version_first else None)
    if not version_first:
        decision = lifecycle.begin(decision.evaluation, version)
    assert (decision.evaluation.state, kinds(decision), decision.starts) == (
        EvaluationState.RUNNING,
        [EvalStarted],
        True,
    )
    again = lifecycle.begin(decision.evaluation, version)
    assert again == lifecycle.Decision(decision.evaluation)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [("passed", EvalPassed), ("failed", EvalFailed), ("inconclusive", EvalInconclusive)],
)
def test_an_end_tells_every_check_in_order_and_then_one_verdict(outcome, verdict):
    decision = lifecycle.end(an_evaluation(), a_result(outcome, PASSED))
    assert kinds(decision) == [EvalCheckCompleted] * len(CHECKS) + [verdict]
    assert [event.result.check for event in decision.events[:-1]] == list(CHECKS)
    assert decision.events[-1].checks == tuple(PASSED)
    assert {event.eval_id for event in decision.events} == {"eval-1"}
    assert {event.model_id for event in decision.events} == {"model-digest"}


def test_progress_is_that_of_the_evaluation():
    fact = lifecycle.progressed(an_evaluation(), {"activity": "holdout", "items_done": 3})
    assert (fact.eval_id, fact.model_id, fact.activity, fact.items_done) == (
        "eval-1",
        "model-digest",
        "holdout",
        3,
    )


@pytest.mark.parametrize("state", sorted(TRANSITIONS.terminal - {EvaluationState.ABANDONED}))
def test_a_verdict_is_published_once(state):
    over = an_evaluation(state)
    assert lifecycle.end(over, a_result()) == lifecycle.Decision(over)
    assert lifecycle.give_up(over, reason="again").events == ()


def test_giving_up_is_inconclusive_for_all_that_was_asked():
    artifact = an_artifact(benchmarks=(a_suite(),), holdout=a_file("holdout"))
    decision = lifecycle.give_up(an_evaluation(artifact=artifact), reason="exit code -9")
    verdict = decision.events[-1]
    assert type(verdict) is EvalInconclusive
    assert verdict.reason == "exit code -9"
    assert [(check.outcome, check.reason) for check in verdict.checks] == [
        *[("inconclusive", "exit code -9")] * 2,
        *[("not_requested", "")] * 3,
    ]
    ended = decision.evaluation
    assert (ended.state, ended.checks) == (EvaluationState.INCONCLUSIVE, verdict.checks)


def test_an_artifact_that_could_not_be_copied_gets_no_verdict():
    decision = lifecycle.abandon(an_evaluation(EvaluationState.WAITING), reason="corrupt")
    assert (decision.evaluation.state, decision.events) == (EvaluationState.ABANDONED, ())
    assert decision.evaluation.reason == "corrupt"
    running = an_evaluation()
    assert lifecycle.abandon(running, reason="late").evaluation == running


def test_a_cancelled_job_ends_its_evaluation():
    """One that began has a verdict; of one that did not, nobody was told."""
    decision = lifecycle.cancel(an_evaluation())
    assert (type(decision.events[-1]), decision.events[-1].reason) == (
        EvalInconclusive,
        "the job was cancelled",
    )
    waiting = lifecycle.cancel(an_evaluation(EvaluationState.WAITING))
    assert (waiting.evaluation.state, waiting.events) == (EvaluationState.ABANDONED, ())
    assert waiting.evaluation.reason == "the job was cancelled"
    over = an_evaluation(EvaluationState.PASSED)
    assert lifecycle.cancel(over) == lifecycle.Decision(over)


def test_an_evaluation_moves_so_and_no_other_way():
    assert moves_of(EvaluationState, an_evaluation, field="state") == {
        "waiting": {"running", "abandoned"},
        "running": {"passed", "failed", "inconclusive"},
        "passed": set(),
        "failed": set(),
        "inconclusive": set(),
        "abandoned": set(),
    }


def test_reasons_are_bounded():
    decision = lifecycle.give_up(an_evaluation(), reason="x" * 10_000)
    assert len(decision.events[-1].reason) == len(decision.events[0].result.reason) == 1000


def test_a_renewed_artifact_names_what_is_registered_now():
    old, kept = a_suite("replaced"), a_suite("kept")
    new, safety = a_suite("added"), a_suite("refusals", None)
    replacement = a_suite("replaced", BenchmarkKind.TEXT)
    artifact = lifecycle.renewed(an_artifact(benchmarks=(old, kept)), (replacement, kept, new, safety))
    assert artifact.benchmarks == {
        "replaced": replacement.digest,
        "kept": kept.digest,
        "added": new.digest,
    }
    assert artifact.suites == {"refusals": safety.digest}
    assert artifact.suites == {"refusals": safety.digest}


def test_a_suite_that_is_registered_no_more_is_still_asked_for():
    old = a_suite("lost")
    assert lifecycle.renewed(an_artifact(benchmarks=(old,)), ()).benchmarks == {"lost": old.digest}


def test_the_same_request_always_has_the_same_id():
    ids = [
        lifecycle.evaluation_id(*identity)
        for identity in (("job", "1"), ("job", "1"), ("job", "2"), ("job1",))
    ]
    assert ids[0] == ids[1] == "eval-" + sha256(b"job/1").hexdigest()[:24]
    assert len(set(ids)) == 3


def test_a_baseline_is_published_but_for_where_its_items_are():
    numbers = {
        "base_sha": a_sha("tiny"),
        "harness_version": "1",
        "template_sha256": a_sha("template"),
        "suite_digest": a_sha("suite"),
        "name": "stdlib",
        "metric": "acc_points",
        "value": 41.5,
        "count": 120,
    }
    fact = lifecycle.recorded(Baseline(**numbers, key="baselines/1", sha256=a_sha("items")))
    assert type(fact) is BaselineRecorded
    assert {name: getattr(fact, name) for name in numbers} == numbers


@pytest.mark.parametrize("outcome", ["passed", "failed", "inconclusive"])
def test_an_end_carries_reason_evidence_and_whose_it_is(outcome):
    reason = "" if outcome == "passed" else "x" * 1000
    evidence = evidence_of(an_artifact(), (), harness_version="harness", required=("safety",))
    result = a_result(outcome, PASSED).model_copy(update={"reason": reason + "x", "evidence": evidence})
    decision = lifecycle.end(an_evaluation(), result)
    verdict = decision.events[-1]
    assert verdict.evidence == evidence
    assert (decision.evaluation.reason, decision.evaluation.checks) == (result.reason[:1000], result.checks)
    assert getattr(verdict, "reason", result.reason[:1000]) == result.reason[:1000]
    version = an_evaluation().version
    for event in decision.events:
        for name in ("tenant", "job_id", "model_id", "digest", "base_sha"):
            assert getattr(event, name) == getattr(version, name)
        assert event.number == an_evaluation().number
