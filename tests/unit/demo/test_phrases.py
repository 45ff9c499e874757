import random

import pytest

from deploy.demo.phrases import ENDINGS, Words, an_act, distinct, filled, noun_phrase

WORDS = Words(
    phrases={"where": ("here", "there")}, nouns={"thing": ("box", "city")}, adjectives={"thing": ("old",)}
)


def many(template, count=300):
    chance = random.Random(0)
    return {filled(template, WORDS, chance) for _ in range(count)}


def test_a_placeholder_of_phrases_is_filled_as_it_is():
    assert many("go {where}") == {"go here", "go there"}


def test_a_noun_comes_with_article_number_and_adjective():
    texts = many("{thing}")
    assert {"a box", "an old box", "the cities", "several old boxes", "boxes"} <= texts
    assert not any("{" in text for text in texts)


def test_some_texts_have_an_ending_that_says_nothing():
    chance = random.Random(0)
    texts = [an_act("go {where}", WORDS, chance) for _ in range(300)]
    assert 30 < sum(text.endswith(ENDINGS) for text in texts) < 100


@pytest.mark.parametrize(
    ("noun", "plural"),
    [
        ("box", "boxes"),
        ("city", "cities"),
        ("key", "keys"),
        ("man", "men"),
        ("wife", "wives"),
        ("match", "matches"),
    ],
)
def test_plurals(noun, plural):
    nouns = {noun_phrase(noun, (), random.Random(seed)).split(maxsplit=1)[-1] for seed in range(50)}
    assert nouns == {noun, plural}


def test_distinct_takes_the_templates_in_turn_until_there_are_enough():
    chance = random.Random(0)
    texts = distinct(40, ("fixed", "{thing} {where}"), lambda text: filled(text, WORDS, chance))
    assert len(set(texts)) == 40
    assert sum(text.startswith("fixed") for text in texts) < len(texts)
