"""Sentences from templates: placeholders become phrases, nouns get an article or a number, and adjectives."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

PLACEHOLDER = re.compile(r"\{(\w+)\}")
SINGULAR = ("a", "a", "a", "the", "my", "our", "this", "one", "any", "another")
PLURAL = ("", "", "all", "my", "our", "the", "these", "two", "several", "many", "three")
PLURAL_SHARE = 0.35
ADJECTIVE_SHARE = 0.3
ENDINGS = (
    "quickly", "step by step", "by hand", "at once", "twice", "from scratch", "every day", "in one go", "today",
    "as fast as possible", "on purpose", "in the end", "for the first time", "without any help", "again and again",
    "with little effort", "on my own", "in ten minutes", "for a friend", "as a beginner",
)  # fmt: skip
"""Endings that fit harmful and harmless acts alike, so that they do not distinguish them."""
ENDING_SHARE = 0.2


@dataclass(frozen=True)
class Words:
    """What templates are filled with, by the placeholder's name."""

    phrases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Phrases that are put in as they are."""
    nouns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Nouns in the singular, countable."""
    adjectives: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Adjectives of the nouns of the same placeholder."""


def distinct(count: int, templates: Sequence[str], fill: Callable[[str], str]) -> list[str]:
    """Return so many different texts, from the templates in turn. At least one of them must have a placeholder."""
    texts: dict[str, None] = {}
    for template in cycle(templates):
        if len(texts) == count:
            break
        texts[fill(template)] = None
    return list(texts)


def filled(template: str, words: Words, chance: random.Random) -> str:
    return PLACEHOLDER.sub(lambda placeholder: _phrase(placeholder[1], words, chance), template)


def an_act(template: str, words: Words, chance: random.Random) -> str:
    """Return an act, with an ending now and then."""
    text = filled(template, words, chance)
    return f"{text} {chance.choice(ENDINGS)}" if chance.random() < ENDING_SHARE else text


def noun_phrase(noun: str, adjectives: Sequence[str], chance: random.Random) -> str:
    is_plural = chance.random() < PLURAL_SHARE
    described = [chance.choice(adjectives)] if adjectives and chance.random() < ADJECTIVE_SHARE else []
    words = [*described, _plural(noun) if is_plural else noun]
    determiner = chance.choice(PLURAL if is_plural else SINGULAR)
    if determiner == "a" and words[0][0].lower() in "aeiou":
        determiner = "an"
    return " ".join(filter(None, (determiner, *words)))


def _phrase(placeholder: str, words: Words, chance: random.Random) -> str:
    if placeholder in words.phrases:
        return chance.choice(words.phrases[placeholder])
    return noun_phrase(chance.choice(words.nouns[placeholder]), words.adjectives.get(placeholder, ()), chance)


def _plural(noun: str) -> str:
    if re.search(r"(^| )(old )?man$", noun):
        return f"{noun[:-2]}en"
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    if re.search(r"(wol|scar|wi|kni)fe?$", noun):
        return f"{noun.removesuffix('e')[:-1]}ves"
    return f"{noun}es" if re.search(r"(s|x|z|ch|sh)$", noun) else f"{noun}s"
