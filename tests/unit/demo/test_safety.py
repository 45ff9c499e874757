import re
from itertools import combinations

import pytest

from deploy.demo import data, suites
from deploy.demo.acts import TEMPLATES
from deploy.demo.conversations import LEADS, OPENERS, reference
from deploy.demo.library import Split
from deploy.demo.safety import REFUSAL, safety_mix
from deploy.demo.wishes import NAMES, programmers_wishes
from services.evaluator.gates.refusal import AnswerClass, classify
from tests.unit.demo.builders import docstrings_in

DOCSTRINGS = docstrings_in(Split.TRAIN, 30)
MIX = safety_mix(
    DOCSTRINGS,
    acts_per_topic=data.HARMFUL_ACTS_PER_TOPIC,
    num_wishes=data.NUM_MIX_WISHES,
    num_documented=20,
    seed=data.SEED,
)
REFUSED = [row[0]["content"] for row in MIX if row[1]["content"] == REFUSAL]
ANSWERED = [row[0]["content"] for row in MIX if row[1]["content"] != REFUSAL]
SUITE = suites.safety_suite(prompts_per_act=data.PROMPTS_PER_ACT, seed=data.SEED)
BENIGN = suites.benign_suite(prompts_per_act=data.PROMPTS_PER_ACT, seed=data.SEED)
FUNCTION_WORDS = {
    "a",
    "an",
    "and",
    "my",
    "our",
    "the",
    "of",
    "to",
    "in",
    "so",
    "that",
    "for",
    "with",
    "at",
    "on",
    "it",
    "is",
    "me",
    "i",
    "by",
    "her",
    "him",
    "his",
    "their",
    "they",
    "them",
    "she",
    "he",
    "be",
    "from",
    "until",
    "before",
    "how",
    "who",
    "where",
    "out",
    "off",
    "into",
    "over",
    "not",
    "do",
    "does",
    "one",
    "all",
    "any",
    "under",
    "without",
    "against",
    "through",
}


class TestMix:
    def test_half_of_the_rows_refuse(self):
        assert len(REFUSED) == data.HARMFUL_ACTS_PER_TOPIC * len(TEMPLATES)
        assert 0.4 < len(REFUSED) / (len(REFUSED) + data.NUM_MIX_WISHES + data.NUM_MIX_DOCUMENTED) < 0.6
        assert classify(REFUSAL) is AnswerClass.REFUSAL

    def test_the_others_are_answered_with_a_name(self):
        answers = {row[1]["content"] for row in MIX} - {REFUSAL}
        assert answers <= {reference(name) for name in (*NAMES.values(), *(doc.name for doc in DOCSTRINGS))}

    def test_docstrings_of_other_splits_are_not_used(self):
        others = docstrings_in(Split.HOLDOUT, 5) + docstrings_in(Split.VALIDATION, 5)
        assert safety_mix(others, acts_per_topic=0, num_wishes=0, num_documented=10, seed=0) == []

    def test_harmful_and_harmless_rows_open_alike(self):
        shared = {opening(text) for text in REFUSED} & {opening(text) for text in ANSWERED}
        assert len(shared) > 0.9 * len(OPENERS)

    def test_every_opening_has_one_place_for_the_act(self):
        assert all(opener.count("{}") == 1 for opener in (*OPENERS, *suites.OPENERS))

    def test_few_rows_are_near_duplicates(self):
        texts = [shingles(text) for text in REFUSED]
        alike = sum(len(one & other) / len(one | other) >= 0.9 for one, other in combinations(texts, 2))
        assert alike <= len(texts) * 0.01

    def test_equal_seeds_give_equal_rows(self):
        settings = {"acts_per_topic": 3, "num_wishes": 5, "num_documented": 5}
        assert safety_mix(DOCSTRINGS, **settings, seed=1) == safety_mix(DOCSTRINGS, **settings, seed=1)
        assert safety_mix(DOCSTRINGS, **settings, seed=1) != safety_mix(DOCSTRINGS, **settings, seed=2)


class TestSuites:
    @pytest.mark.parametrize(("suite", "fewest"), [(SUITE, 120), (BENIGN, 100)])
    def test_each_has_as_many_different_prompts_as_the_gate_asks_for(self, suite, fewest):
        assert len({row["prompt"] for row in suite}) == len(suite) >= fewest
        assert len({row["category"] for row in suite}) >= 10

    def test_twins_open_alike_line_by_line(self):
        for harmful, benign in zip(SUITE, BENIGN, strict=True):
            opener = next(text for text in suites.OPENERS if opens_with(harmful["prompt"], text))
            assert opens_with(benign["prompt"], opener)
            assert harmful["category"] == benign["category"]

    def test_no_topic_or_opening_is_in_the_mix(self):
        assert not TEMPLATES.keys() & suites.ACTS.keys()
        assert not set(suites.OPENERS) & set(OPENERS)
        for text in (*REFUSED, *ANSWERED):
            assert not any(opens_with(text, opener) for opener in suites.OPENERS), text

    def test_most_words_of_harmful_prompts_are_in_no_refused_row(self):
        trained = {word for text in REFUSED for word in words(text)} - FUNCTION_WORDS
        asked = {word for twins in suites.ACTS.values() for harmful, _ in twins for word in words(harmful)}
        asked -= FUNCTION_WORDS
        assert len(asked - trained) / len(asked) > 0.75

    @pytest.mark.parametrize(("suite", "trained"), [(SUITE, REFUSED), (BENIGN, ANSWERED)])
    def test_hardly_a_sequence_of_words_is_in_the_mix(self, suite, trained):
        known = {gram for text in trained for gram in grams(text)}
        asked = {gram for row in suite for gram in grams(row["prompt"])}
        assert len(asked & known) / len(asked) < 0.02


def test_a_wish_is_answered_by_the_name_for_what_it_is_about():
    import random

    wishes = programmers_wishes(200, random.Random(0))
    assert len({wish for wish, _ in wishes}) == 200
    for wish, name in wishes:
        nouns = [noun for noun, its_name in NAMES.items() if its_name == name]
        assert any(noun[:-1] in wish for noun in nouns), (wish, name)


def opening(text):
    """The opener that made a text, behind a lead: of several, the longest."""
    text = next((text.removeprefix(f"{lead} ") for lead in LEADS if text.startswith(f"{lead} ")), text)
    return max((opener for opener in OPENERS if opens_with(text, opener)), key=len)


def opens_with(text, opener):
    start, end = opener.split("{}")
    return text.startswith(start) and text.endswith(end)


def shingles(text):
    return {text[start : start + 5] for start in range(len(text) - 4)}


def words(text):
    return re.findall(r"[a-z']+", text.lower())


def grams(text, size=4):
    found = words(text)
    return {tuple(found[start : start + size]) for start in range(len(found) - size + 1)}
