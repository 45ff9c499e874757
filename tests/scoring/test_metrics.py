"""Each metric on answers whose worth is known by hand."""

import pytest
from pydantic import ValidationError

from schemas.gate import HoldoutRule, answer_budget
from services.evaluator.scoring.metrics import metric_named, normalise, rouge_l
from services.evaluator.scoring.order import ScoringRefused

JSON = '{"a": [1, {"b": true}], "c": null}'


@pytest.mark.parametrize(
    ("given", "equal"),
    [
        ("Json", True),
        (" json.\n", True),
        ("JSON!", True),
        ("ｊｓｏｎ", True),
        ("j son", False),
        ("jsonl", False),
        ("", False),
    ],
)
def test_exact_match_ignores_case_space_and_the_full_stop(given, equal):
    assert (normalise(given) == normalise("json")) is equal


def test_punctuation_alone_is_not_silence():
    assert normalise("?") == "?"
    assert normalise("!") != normalise("")
    assert normalise("it’s “so”") == normalise('it\'s "so"')


@pytest.mark.parametrize(
    ("name", "answer", "reference", "expected"),
    [
        ("exact_match", "Paris.", "paris", 1.0),
        ("exact_match", "It is Paris.", "paris", 0.0),
        ("contains", "It is Paris, I think.", "paris", 1.0),
        ("contains", "I know.", "no", 0.0),
        ("contains", "c++ and c", "C++", 1.0),
        ("token_f1", "the red house", "the red car", 2 / 3),
        ("token_f1", "the the the", "the red car", 1 / 3),
        ("token_f1", "", "the red car", 0.0),
        ("token_f1", "?", "?", 1.0),
        ("json_equal", JSON, '{"c": null, "a": [1.0, {"b": true}]}', 1.0),
        ("json_equal", f"```json\n{JSON}\n```", JSON, 1.0),
        ("json_equal", '{"a": 1}', '{"a": true}', 0.0),
        ("json_equal", f"Here it is: {JSON}", JSON, 0.0),
        ("json_equal", "[" * 100_000, JSON, 0.0),
        ("rouge_l", "the cat sat", "the cat sat", 1.0),
        ("rouge_l", "the dog sat down", "the cat sat", 4 / 7),
        ("rouge_l", "кошка сидит", "кошка спит", 0.5),
        ("bleu", "the cat sat on the mat", "the cat sat on the mat", 1.0),
        ("bleu", "nothing of this", "the cat sat on the mat", 0.0),
    ],
)
def test_answers_are_worth_what_they_are(name, answer, reference, expected):
    assert metric_named(name, None)(answer, reference) == pytest.approx(expected)


def test_bleu_of_a_near_miss_lies_between():
    assert 0.3 < metric_named("bleu", None)("the cat sat on a mat", "the cat sat on the mat") < 0.9


def test_rouge_is_the_librarys_own():
    from rouge_score.rouge_scorer import RougeScorer

    answer, reference = "The U.S. team won, 3-2, in the end!", "In the end the US team has won 3-2."
    assert rouge_l(answer, reference) == RougeScorer(["rougeL"]).score(reference, answer)["rougeL"].fmeasure


@pytest.mark.parametrize(
    ("pattern", "answer", "reference", "expected"),
    [
        (r"#### (-?[\d,]+)", "5 + 5 = 10\n#### 10", "so #### 10", 1.0),
        (r"#### (-?[\d,]+)", "#### 9, no: #### 10", "10", 1.0),
        (r"#### (-?[\d,]+)", "It is 10", "#### 10", 0.0),
        (r"\d+", "from 3 to 12", "12", 1.0),
        (r"yes|no", "maybe", "maybe", 0.0),
    ],
)
def test_what_the_pattern_matches_last_is_compared(pattern, answer, reference, expected):
    assert metric_named("regex", pattern)(answer, reference) == expected


def test_a_pattern_that_does_not_end_is_refused():
    with pytest.raises(ScoringRefused, match=r"took over 1\.0 s on one answer") as refused:
        metric_named("regex", r"(a|aa)+$")("a" * 60 + "b", "a")
    assert refused.value.failure.code == "slow_pattern"


@pytest.mark.parametrize(
    "fields",
    [
        {"metric": "regex"},
        {"metric": "exact_match", "pattern": "x"},
        {"metric": "regex", "pattern": "("},
        {"metric": "regex", "pattern": "a" * 201},
        {"metric": "meteor"},
    ],
)
def test_a_rule_that_cannot_be_scored_is_refused(fields):
    with pytest.raises(ValidationError):
        HoldoutRule(**fields)


def test_the_answer_budget_is_of_the_longest_hundredth():
    assert answer_budget([3] * 100) == 32
    assert answer_budget([40] * 99 + [4_000]) == 60
    assert answer_budget([40] * 98 + [400, 4_000]) == 600
    assert answer_budget([4_000] * 10) == 1_024
    assert answer_budget([100], limit=120) == 120
    assert answer_budget([]) == 32
