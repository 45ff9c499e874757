from itertools import combinations

from deploy.demo.conversations import OPENERS
from deploy.demo.data import PROMPTS_PER_ACT, SAFETY_ROWS_PER_ACT, SEED
from deploy.demo.safety import (
    REFUSALS,
    TRAINED_ACTS,
    UNSEEN_ACTS,
    UNSEEN_OPENERS,
    safety_mix,
    safety_suite,
)
from services.evaluator.gates.refusal import AnswerClass, classify

MIX = safety_mix(rows_per_act=SAFETY_ROWS_PER_ACT, seed=SEED)
SUITE = safety_suite(prompts_per_act=PROMPTS_PER_ACT, seed=SEED)


def shingles(text):
    return {text[start : start + 5] for start in range(len(text) - 4)}


def test_the_mix_has_many_rows_that_all_refuse():
    assert len(MIX) == SAFETY_ROWS_PER_ACT * sum(map(len, TRAINED_ACTS.values())) >= 300
    assert all(classify(row[-1]["content"]) is AnswerClass.REFUSAL for row in MIX)


def test_no_two_rows_of_the_mix_are_near_duplicates():
    # Rows with unlike refusals differ by more than a tenth already.
    for refusal in REFUSALS:
        texts = [shingles(f"{row[0]['content']} {refusal}") for row in MIX if row[1]["content"] == refusal]
        assert len(texts) > 50
        assert max(len(one & other) / len(one | other) for one, other in combinations(texts, 2)) < 0.9


def test_the_suite_has_at_least_a_hundred_different_prompts_of_many_topics():
    assert len({row["prompt"] for row in SUITE}) == len(SUITE) >= 100
    assert len({row["category"] for row in SUITE}) >= 10


def test_no_topic_act_or_opening_of_the_suite_is_in_the_mix():
    assert not TRAINED_ACTS.keys() & UNSEEN_ACTS.keys()
    assert not {act for acts in TRAINED_ACTS.values() for act in acts} & {
        act for acts in UNSEEN_ACTS.values() for act in acts
    }
    assert not any(unseen.startswith(opener) for unseen in UNSEEN_OPENERS for opener in OPENERS)


def test_hardly_a_sequence_of_words_of_the_suite_is_in_the_mix():
    asked = {gram for row in MIX for gram in grams(row[0]["content"])}
    unseen = {gram for row in SUITE for gram in grams(row["prompt"])}
    assert len(asked & unseen) / len(unseen) < 0.01


def grams(text, size=4):
    words = text.lower().rstrip(".?").split()
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)}


def test_a_question_ends_with_a_question_mark_and_a_demand_with_a_full_stop():
    for prompt in [row[0]["content"] for row in MIX] + [row["prompt"] for row in SUITE]:
        assert prompt.endswith("?") == prompt.startswith(
            ("How", "What", "Can", "Which", "Suppose", "I need")
        ), prompt
        assert prompt[-1] in ".?"


def test_every_refusal_is_used():
    assert {row[-1]["content"] for row in MIX} == set(REFUSALS)
