"""Items for people: what was asked, what both sides answered, failing ones first."""

import json

import pytest

from schemas.evaluation import BenchmarkKind
from services.evaluator.clients.files import asked_in
from services.evaluator.decide.items import MAX_CHARS, Asked, asked_of, shown_items
from services.evaluator.scoring.order import ItemScore, PartScores, Side
from tests.unit.evaluator.evaluations import a_suite, known

MMLU, TEXT = known(a_suite("mmlu")), known(a_suite("text", BenchmarkKind.TEXT))
SAFETY, BENIGN = known(a_suite("refusals", None)), known(a_suite("benign", None, expects="answer"))
HOLDOUT = known()


def scored(*numbers: dict[str, float], side: Side = Side.CANDIDATE) -> PartScores:
    items = tuple(
        ItemScore(key=f"{line:07d}-abc", answer=f"{side} {line}", numbers=each)
        for line, each in enumerate(numbers, 1)
    )
    return PartScores(part="p", side=side, expected=len(items), items=items, seconds=1.0)


def shown(of, base, new, asked=None):
    return shown_items(of, asked or {}, base=scored(*base, side=Side.BASE), new=scored(*new))


def outcomes(of, base, new):
    return {item.line: item.outcome for item in shown(of, base, new)}


@pytest.mark.parametrize(
    ("row", "prompt", "expected"),
    [
        (
            {"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]},
            "user: 1+1?",
            "2",
        ),
        (
            {
                "messages": [
                    {"role": "system", "content": "Count."},
                    {"role": "user", "content": "1+1?"},
                    {"role": "assistant", "content": "2"},
                ]
            },
            "system: Count.\nuser: 1+1?",
            "2",
        ),
        ({"prompt": "1+1=", "completion": "2"}, "1+1=", "2"),
        ({"prompt": ""}, "", ""),
        ({"prompt": "how to steal"}, "how to steal", ""),
        ({"question": "1+1?", "choices": ["1", "2"], "answer": 1}, "1+1?\n- 1\n- 2", "2"),
        ({"text": "a text"}, "a text", ""),
        ({"choices": ["1", "2"], "answer": "B"}, '{"choices": ["1", "2"], "answer": "B"}', ""),
        ({"question": "1+1?", "answer": 2}, '{"question": "1+1?", "answer": 2}', ""),
        ({"ctx": "of ánother shape"}, '{"ctx": "of ánother shape"}', ""),
    ],
)
def test_every_shape_of_row_has_a_question(row, prompt, expected):
    assert asked_of(row) == Asked(prompt=prompt, expected=expected)


def test_what_is_long_is_cut():
    assert len(asked_of({"text": "x" * 10_000}).prompt) == MAX_CHARS


def test_lines_are_those_of_the_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(["", json.dumps({"prompt": "one"}), json.dumps({"prompt": "two"})]))
    assert {line: asked.prompt for line, asked in asked_in(path).items()} == {2: "one", 3: "two"}


def test_an_item_shows_both_answers_and_what_was_expected():
    (item,) = shown(HOLDOUT, [{"hits": 0.0}], [{"hits": 1.0}], {1: Asked(prompt="1+1?", expected="2")})
    assert (item.check, item.suite, item.outcome) == ("holdout", "holdout", "passed")
    assert (item.prompt, item.expected) == ("1+1?", "2")
    assert (item.base_answer, item.answer, item.base_score, item.score) == ("base 1", "candidate 1", 0.0, 1.0)


def test_failing_items_come_first_and_lost_ones_before_all():
    base = [{"hits": 1.0}, {"hits": 0.0}, {"hits": 1.0}, {"hits": 1.0}]
    new = [{"hits": 1.0}, {"hits": 0.0}, {"hits": 0.0}, {}]
    listed = shown(MMLU, base, new)
    assert [(item.line, item.outcome) for item in listed] == [
        (3, "failed"),
        (2, "failed"),
        (4, "unclear"),
        (1, "passed"),
    ]


@pytest.mark.parametrize(
    ("of", "refused", "outcome", "expected"),
    [
        (SAFETY, 1.0, "passed", "(a refusal)"),
        (SAFETY, 0.0, "failed", "(a refusal)"),
        (BENIGN, 1.0, "failed", "(an answer)"),
        (BENIGN, 0.0, "passed", "(an answer)"),
    ],
)
def test_a_refusal_is_right_or_wrong_by_what_the_suite_expects(of, refused, outcome, expected):
    (item,) = shown(of, [{"refused": 1.0}], [{"refused": refused}])
    assert (item.outcome, item.expected) == (outcome, expected)


@pytest.mark.parametrize("of", [SAFETY, BENIGN])
def test_what_no_classifier_could_tell_is_unclear(of):
    base = [{"refused": 1.0, "unclear": 0.0}] * 2
    assert outcomes(of, base, [{}, {"refused": 0.0, "unclear": 1.0}]) == {1: "unclear", 2: "unclear"}


def test_a_text_is_compared_with_the_base_model():
    base = [{"hits": 5.0, "tokens": 10.0}] * 2
    assert outcomes(TEXT, base, [{"hits": 6.0, "tokens": 10.0}, {"hits": 4.0, "tokens": 10.0}]) == {
        1: "passed",
        2: "failed",
    }
    nats = [{"nats": 10.0, "tokens": 10.0}] * 2
    assert outcomes(HOLDOUT, nats, [{"nats": 9.0, "tokens": 10.0}, {"nats": 11.0, "tokens": 10.0}]) == {
        1: "passed",
        2: "failed",
    }


@pytest.mark.parametrize(
    ("of", "numbers", "score"),
    [
        (MMLU, {"hits": 1.0, "tokens": 4.0}, 1.0),
        (TEXT, {"hits": 1.0, "tokens": 4.0}, 0.25),
        (TEXT, {"hits": 0.0, "tokens": 0.0}, 0.0),
        (HOLDOUT, {"hits": 0.5, "tokens": 4.0}, 0.5),
        (HOLDOUT, {"nats": 1.0, "tokens": 4.0}, -0.25),
        (HOLDOUT, {"nats": 1.0}, None),
        (HOLDOUT, {"tokens": 4.0}, None),
    ],
)
def test_an_answer_is_worth_its_hits_of_a_text_those_per_token(of, numbers, score):
    (item,) = shown(of, [numbers], [numbers])
    assert (item.base_score, item.score) == (score, score)


def test_an_item_without_its_row_and_the_base_model_s_answer_shows_the_rest():
    (item,) = shown_items(MMLU, {}, base=None, new=scored({"hits": 1.0}))
    assert (item.prompt, item.expected, item.answer, item.outcome) == ("", "", "candidate 1", "passed")
    assert (item.base_answer, item.base_score) == (None, None)


def test_a_part_that_was_not_scored_shows_nothing():
    assert shown_items(MMLU, {}, base=None, new=None) == []
