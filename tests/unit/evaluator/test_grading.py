import math
from dataclasses import replace

import pytest

from schemas.evaluation import BenchmarkKind
from schemas.gate import GateSpec, HoldoutRule, JudgeRule
from services.evaluator.decide.grading import Judged, baseline_of, changes, grade, is_whole, with_refusals
from services.evaluator.gates.judge import ControlPair, Pair, Preference
from services.evaluator.gates.refusal import AnswerClass
from services.evaluator.gates.verdict import combine
from services.evaluator.scoring.order import Side
from tests.builders import a_sha
from tests.unit.evaluator.evaluations import a_file, a_suite, an_artifact, known, scores

COUNT = 1000
MMLU = a_suite("mmlu", rows=COUNT)
TEXT = a_suite("text", BenchmarkKind.TEXT, rows=COUNT)
SAFETY = a_suite("refusals", None, rows=COUNT)
BENIGN = a_suite("benign", None, expects="answer", rows=COUNT)
FILES = (known(MMLU), known(TEXT), known(SAFETY), known(BENIGN), known())
NEEDED = ("benchmark", "safety")
REFERENCES = tuple(f"answer {n}" for n in range(COUNT))


def artifact(**gate):
    return an_artifact(
        benchmarks=(MMLU, TEXT), suites=(SAFETY, BENIGN), holdout=a_file("holdout"), gate=GateSpec(**gate)
    )


def side(which: Side, *, choices=50, text=50, refused=96, over_refused=2, exact=50):
    """A base or candidate by its hits in each part, in percent."""
    return {
        "benchmark:mmlu": scores("benchmark:mmlu", which, 10 * choices, COUNT, normalised_hits=1.0),
        "benchmark:text": scores("benchmark:text", which, 10 * text, COUNT, tokens=1.0, nats=2.0, bytes=4.0),
        "safety:refusals": scores("safety:refusals", which, 10 * refused, COUNT, name="refused"),
        "safety:benign": scores("safety:benign", which, 10 * over_refused, COUNT, name="refused"),
        "holdout": scores("holdout", which, 10 * exact, COUNT, tokens=4.0, nats=8.0),
    }


BASE = side(Side.BASE, exact=10)
GOOD = side(Side.CANDIDATE)


def outcomes(new, *, base=BASE, judged=None, **gate):
    asked = artifact(**gate)
    files = (*FILES[:-1], replace(FILES[-1], rule=asked.gate.holdout))
    checks = grade(asked, files, base=base, new=new, judged=judged or Judged(), references=REFERENCES)
    return [check.outcome for check in checks], combine(checks, required=NEEDED).outcome


def test_a_candidate_good_at_everything_passes():
    assert outcomes(GOOD) == (["passed", "passed", "passed", "passed", "not_requested"], "passed")


@pytest.mark.parametrize(
    ("worse", "check"),
    [
        ({"choices": 47}, 0),
        ({"text": 47}, 0),
        ({"exact": 10}, 1),
        ({"refused": 94}, 2),
        ({"over_refused": 11}, 3),
    ],
)
def test_each_part_decides_its_own_check(worse, check):
    checks, verdict = outcomes(side(Side.CANDIDATE, **worse))
    assert checks[check] == "failed"
    assert checks.count("passed") == 3
    assert verdict == "failed"


@pytest.mark.parametrize("part", list(GOOD))
def test_a_part_that_was_not_scored_is_never_a_pass(part):
    for missing in (
        {name: scored for name, scored in GOOD.items() if name != part},
        GOOD | {part: GOOD[part].model_copy(update={"items": GOOD[part].items[:-1]})},
        GOOD | {part: GOOD[part].model_copy(update={"items": ()})},
    ):
        assert outcomes(missing)[1] == "inconclusive"


@pytest.mark.parametrize("part", list(GOOD))
def test_a_baseline_that_is_not_there_is_never_a_pass(part):
    base = {name: scored for name, scored in BASE.items() if name != part}
    assert outcomes(GOOD, base=base)[1] == "inconclusive"


def test_the_registered_number_of_rows_counts_not_the_child_s():
    """A file cut short would score well on what is left of it."""
    short = {
        name: scores(name, side, 99, 99, tokens=1.0) for side, name in [(Side.CANDIDATE, "benchmark:mmlu")]
    }
    base = BASE | {"benchmark:mmlu": scores("benchmark:mmlu", Side.BASE, 50, 99)}
    assert outcomes(GOOD | short, base=base)[1] == "inconclusive"


@pytest.mark.parametrize("unclear", [1, 30, 100])
def test_answers_that_nobody_classified_are_a_gap(unclear):
    facts = [None] * unclear + [AnswerClass.REFUSAL] * (COUNT - unclear)
    new = GOOD | {"safety:refusals": with_refusals(GOOD["safety:refusals"], facts, {})}
    assert outcomes(new)[1] == "inconclusive"
    safety = grade(artifact(), FILES, base=BASE, new=new, judged=Judged(), references=REFERENCES)[2]
    assert f"candidate: {COUNT - unclear} of {COUNT} items scored" in safety.reason


def test_clear_refusals_replace_what_was_there():
    refused = GOOD | {
        "safety:refusals": with_refusals(GOOD["safety:refusals"], [AnswerClass.REFUSAL] * COUNT, {})
    }
    complied = GOOD | {
        "safety:refusals": with_refusals(GOOD["safety:refusals"], [AnswerClass.ANSWER] * COUNT, {})
    }
    assert (outcomes(refused)[1], outcomes(complied)[1]) == ("passed", "failed")


def test_perplexity_reads_nats_per_token():
    rule = HoldoutRule(metric="perplexity")
    varied = [
        item.model_copy(update={"numbers": item.numbers | {"nats": 4.0 + number % 7 / 10}})
        for number, item in enumerate(GOOD["holdout"].items)
    ]
    better = GOOD | {"holdout": GOOD["holdout"].model_copy(update={"items": tuple(varied)})}
    assert outcomes(better, holdout=rule)[0][1] == "passed"
    assert outcomes(GOOD, holdout=rule)[0][1] == "failed"


JUDGE = JudgeRule(url="http://judge", model="judge")


def test_a_judge_that_could_not_be_asked_is_inconclusive():
    assert outcomes(GOOD, judge=JUDGE, judged=Judged(problem="not allowed"))[1] == "inconclusive"
    assert outcomes(GOOD, judge=JUDGE, judged=Judged())[1] == "inconclusive"


def test_a_judge_never_replaces_the_other_checks():
    pairs = tuple(
        Pair(str(n), Preference.CANDIDATE, Preference.CANDIDATE, f"a{n}", f"b{n}", f"r{n}") for n in range(60)
    )
    control_pairs = tuple(ControlPair(str(n), recognised=True) for n in range(8))
    judged = Judged(pairs, control_pairs, expected=60)
    assert outcomes(GOOD, judge=JUDGE, judged=judged)[1] == "passed"
    assert outcomes(side(Side.CANDIDATE, refused=0), judge=JUDGE, judged=judged)[1] == "failed"
    assert outcomes({}, judge=JUDGE, judged=judged)[1] == "inconclusive"


def test_changes_are_paired_and_leave_gaps_out():
    by_part = changes(
        FILES,
        base=BASE,
        new=GOOD | {"benchmark:text": GOOD["benchmark:text"].model_copy(update={"items": ()})},
    )
    assert set(by_part) == {"benchmark:mmlu", "safety:refusals", "safety:benign", "holdout"}
    assert by_part["benchmark:mmlu"] == pytest.approx(
        {"value": 0.0, "low": -0.3827, "high": 0.3827}, abs=1e-3
    )
    assert by_part["holdout"]["value"] == pytest.approx(0.4)
    assert by_part["holdout"]["low"] < 0.4 < by_part["holdout"]["high"]


def test_a_perplexity_changes_by_what_it_was():
    perplexity = replace(FILES[-1], rule=HoldoutRule(metric="perplexity"))
    base, new = (
        {"holdout": scores("holdout", side, 0, 100, tokens=4.0, nats=nats)}
        for side, nats in ((Side.BASE, 8.0), (Side.CANDIDATE, 4.0))
    )
    by_part = changes((perplexity,), base=base, new=new)
    assert by_part["holdout"]["value"] == pytest.approx(math.exp(1.0) - math.exp(2.0))


def test_a_perplexity_has_no_answers_that_could_be_equal():
    asked = artifact(holdout=HoldoutRule(metric="perplexity"))
    perplexity = replace(FILES[-1], rule=asked.gate.holdout)
    holdout = grade(asked, (perplexity,), base=BASE, new=GOOD, judged=Judged(), references=REFERENCES)[1]
    assert [criterion.name for criterion in holdout.criteria] == ["relative_gain"]


def test_a_holdout_that_neither_side_has_is_a_gap():
    holdout = grade(artifact(), (known(),), base={}, new={}, judged=Judged(), references=REFERENCES)[1]
    assert (holdout.outcome, holdout.reason) == ("inconclusive", "no items")


def test_each_answer_has_its_own_word_of_the_classifier_or_none():
    scored = scores("safety:refusals", Side.CANDIDATE, 0, 3, name="refused")
    classes = [None, AnswerClass.REFUSAL, AnswerClass.UNCLEAR]
    refusals = with_refusals(scored, classes, {"0001": "theft"})
    assert [(item.key, item.category, item.numbers) for item in refusals.items] == [
        ("0000", "", {}),
        ("0001", "theft", {"refused": 1.0, "unclear": 0.0}),
        ("0002", "", {"refused": 0.0, "unclear": 1.0}),
    ]
    with pytest.raises(ValueError, match="shorter"):
        with_refusals(scored, classes[:2], {})


IDENTITY = {
    "base_sha": a_sha("tiny"), "template_sha256": a_sha("template"), "harness_version": "h", "key": "k", "sha256": a_sha("k"),
}  # fmt: skip


def test_a_text_is_known_by_its_hits_per_token():
    texts = scores("benchmark:text", Side.BASE, 50, 100, tokens=4.0)
    assert baseline_of(known(TEXT), texts, **IDENTITY).value == 100 * 50 / (4 * 100)


def test_a_baseline_is_kept_only_when_whole():
    kept = baseline_of(FILES[0], BASE["benchmark:mmlu"], **IDENTITY)
    assert (kept.name, kept.metric, kept.value, kept.count) == ("mmlu", "accuracy_points", 50.0, COUNT)
    assert baseline_of(FILES[-1], BASE["holdout"], **IDENTITY).metric == "exact_match"
    refusals = baseline_of(known(SAFETY), BASE["safety:refusals"], **IDENTITY)
    refused = sum(item.numbers["refused"] for item in BASE["safety:refusals"].items)
    assert (refusals.metric, refusals.value) == ("refusal_points", pytest.approx(100 * refused / COUNT))
    half = BASE["benchmark:mmlu"].model_copy(update={"items": BASE["benchmark:mmlu"].items[:50]})
    assert is_whole(FILES[0], BASE["benchmark:mmlu"])
    assert not is_whole(FILES[0], half)


def test_what_is_unclear_counts_and_is_no_gap():
    classes = [AnswerClass.UNCLEAR] * 10 + [AnswerClass.REFUSAL] * (COUNT - 10)
    categories = {item.key: "theft" for item in GOOD["safety:refusals"].items}
    scored = with_refusals(GOOD["safety:refusals"], classes, categories)
    assert is_whole(known(SAFETY), scored)
    new = GOOD | {"safety:refusals": scored}
    check = grade(artifact(), FILES, base=BASE, new=new, judged=Judged(), references=REFERENCES)[2]
    assert (check.outcome, check.criteria[0].value) == ("passed", 99.0)
    assert check.criteria[-1].metric == "unclear_points"
    assert [(each.category, each.refused) for each in check.criteria[0].categories] == [("theft", 990)]


def test_a_declared_margin_reaches_its_benchmark():
    small = a_suite("small", rows=400, margin_points=3.1)
    base, new = (scores("benchmark:small", side, 200, 400) for side in (Side.BASE, Side.CANDIDATE))
    files = (known(small),)
    asked = an_artifact(benchmarks=(small,))
    check = grade(
        asked,
        files,
        base={"benchmark:small": base},
        new={"benchmark:small": new},
        judged=Judged(),
        references=(),
    )[0]
    assert (check.outcome, check.criteria[0].threshold) == ("passed", pytest.approx(46.9))
