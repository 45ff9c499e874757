import random
from dataclasses import replace
from itertools import combinations

import pytest

from deploy.demo import acts, data, wishes
from deploy.demo.conversations import IMPERATIVES, wish
from deploy.demo.library import Split
from deploy.demo.safety import ANSWER, OPENERS, REFUSAL, make_safety_data
from services.evaluator.gates.refusal import AnswerClass, classify
from tests.unit.demo.builders import docstrings_in

DOCSTRINGS = [*docstrings_in(Split.TRAIN, 1_000), *docstrings_in(Split.HOLDOUT, 150)]
SAFETY = make_safety_data(DOCSTRINGS, data.SAFETY, seed=data.SEED)
REFUSED = [row[0]["content"] for row in SAFETY.mix if row[1]["content"] == REFUSAL]
ANSWERED = [row[0]["content"] for row in SAFETY.mix if row[1]["content"] == ANSWER]
REPLAYED = [row[0]["content"] for row in SAFETY.replay]
SUITE = [row["prompt"] for row in SAFETY.suite]
BENIGN = [row["prompt"] for row in SAFETY.benign]


class TestMix:
    def test_half_of_the_rows_refuse_and_the_others_answer(self):
        sizes = data.SAFETY
        assert len(REFUSED) == sizes.acts_per_topic * len(acts.TEMPLATES)
        assert 0.4 < len(REFUSED) / (len(REFUSED) + sizes.wishes) < 0.6
        assert len(REFUSED) + len(ANSWERED) == len(SAFETY.mix)
        assert classify(REFUSAL) is AnswerClass.REFUSAL
        assert classify(ANSWER) is AnswerClass.ANSWER

    def test_what_is_replayed_in_the_training_file_is_answered(self):
        assert {row[1]["content"] for row in SAFETY.replay} == {ANSWER}
        assert len(SAFETY.replay) == data.SAFETY.replayed_wishes

    def test_docstrings_of_validation_are_not_used(self):
        sizes = replace(data.SAFETY, acts_per_topic=0, asked_acts_per_topic=0)
        dataset = make_safety_data(docstrings_in(Split.VALIDATION, 5), sizes, seed=0)
        assert (dataset.mix, dataset.benign) == ((), ())

    def test_harmful_and_harmless_rows_open_alike(self):
        assert {opening(text) for text in REFUSED} == {opening(text) for text in ANSWERED} == set(OPENERS)

    def test_every_opening_has_one_place_for_the_act(self):
        assert all(opener.count("{}") == 1 for opener in OPENERS)

    def test_no_harmful_verb_begins_what_is_answered(self):
        assert not IMPERATIVES & acts.VERBS
        assert not {verb(text) for text in (*ANSWERED, *REPLAYED, *BENIGN)} & acts.VERBS
        assert {verb(text) for text in (*REFUSED, *SUITE)} == acts.VERBS

    def test_few_rows_are_near_duplicates(self):
        texts = [shingles(text) for text in REFUSED]
        alike = sum(len(one & other) / len(one | other) >= 0.9 for one, other in combinations(texts, 2))
        assert alike <= len(texts) * 0.01

    def test_equal_seeds_give_equal_data(self):
        assert make_safety_data(DOCSTRINGS, data.SAFETY, seed=data.SEED) == SAFETY
        assert make_safety_data(DOCSTRINGS, data.SAFETY, seed=data.SEED + 1) != SAFETY


class TestSuites:
    @pytest.mark.parametrize("suite", [SUITE, BENIGN])
    def test_each_has_as_many_different_prompts_as_the_gate_asks_for(self, suite):
        assert len(set(suite)) == len(suite) >= 120

    def test_harmful_prompts_are_of_every_topic_alike(self):
        categories = [row["category"] for row in SAFETY.suite]
        numbers = {categories.count(topic) for topic in acts.TEMPLATES}
        assert numbers == {data.SAFETY.asked_acts_per_topic}

    def test_benign_prompts_come_from_docstrings_of_the_holdout(self):
        held_out = {wish(doc) for doc in DOCSTRINGS if doc.split is Split.HOLDOUT}
        assert {act(text) for text in BENIGN} <= held_out
        others = docstrings_in(Split.TRAIN, 5)
        assert make_safety_data(others, data.SAFETY, seed=0).benign == ()

    @pytest.mark.parametrize(("suite", "trained"), [(SUITE, REFUSED), (BENIGN, [*ANSWERED, *REPLAYED])])
    def test_no_act_is_in_a_row(self, suite, trained):
        assert not {act(text) for text in suite} & {act(text) for text in trained}


def test_a_wish_is_answered_by_the_name_for_what_it_is_about():
    asked = wishes.programmers_wishes(200, random.Random(0))
    assert len({text for text, _ in asked}) == 200
    for text, name in asked:
        nouns = [noun for noun, its_name in wishes.NAMES.items() if its_name == name]
        assert any(noun[:-1] in text for noun in nouns), (text, name)


def opening(text):
    """The opener that made a text: of several, the longest."""
    return max((opener for opener in OPENERS if opens_with(text, opener)), key=len)


def act(text):
    """What the opener was filled with."""
    start, end = opening(text).split("{}")
    return text[len(start) : len(text) - len(end)]


def verb(text):
    return act(text).split()[0]


def opens_with(text, opener):
    start, end = opener.split("{}")
    return text.startswith(start) and text.endswith(end)


def shingles(text):
    return {text[start : start + 5] for start in range(len(text) - 4)}
