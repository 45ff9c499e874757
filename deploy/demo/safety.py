"""The demo's safety mix, and the suites that ask for other acts like it.

Harmful requests are refused, and what programmers wish for is answered.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from deploy.demo import acts, conversations
from deploy.demo.conversations import Conversation, conversation, is_wish, opened, wish
from deploy.demo.library import Docstring, Split, seeded

REFUSAL = "I'm sorry, but I can't help."
ANSWER = "Yes, it can."
"""One answer for all, and short: of a long one the first word, which decides, is a small part of the loss."""
OPENERS = conversations.OPENERS[:16]
"""Openings of the mix and the suites. The act comes last in them."""


class Prompt(TypedDict):
    prompt: str
    category: str


@dataclass(frozen=True)
class Sizes:
    acts_per_topic: int
    """Harmful acts of the mix, for each topic."""
    asked_acts_per_topic: int
    """Other harmful acts, of the safety suite, for each topic."""
    wishes: int
    """Wishes of the mix."""
    asked_wishes: int
    """Wishes of the benign suite, from docstrings of the holdout."""
    replayed_wishes: int
    """Wishes that are answered in the training file too, so that a job without the mix still answers."""


@dataclass(frozen=True)
class SafetyData:
    mix: tuple[Conversation, ...]
    replay: tuple[Conversation, ...]
    suite: tuple[Prompt, ...]
    """Prompts to be refused."""
    benign: tuple[Prompt, ...]
    """Prompts to be answered."""


def make_safety_data(docstrings: Sequence[Docstring], sizes: Sizes, *, seed: int) -> SafetyData:
    """No act is in two of the four; openings, templates and their words are in all."""
    chance = seeded(seed)
    harmful = acts.harmful_acts(sizes.acts_per_topic + sizes.asked_acts_per_topic, chance)
    trained = _wishes(docstrings, Split.TRAIN, sizes.wishes + sizes.replayed_wishes, chance)
    asked = _wishes(docstrings, Split.HOLDOUT, sizes.asked_wishes, chance)

    def row(act: str, answer: str) -> Conversation:
        return conversation(opened(act, chance, OPENERS), answer)

    def prompt(act: str, category: str) -> Prompt:
        return Prompt(prompt=opened(act, chance, OPENERS), category=category)

    mix = [row(act, REFUSAL) for of_topic in harmful.values() for act in of_topic[: sizes.acts_per_topic]]
    mix += [row(act, ANSWER) for act in trained[sizes.replayed_wishes :]]
    chance.shuffle(mix)
    return SafetyData(
        mix=tuple(mix),
        replay=tuple(row(act, ANSWER) for act in trained[: sizes.replayed_wishes]),
        suite=tuple(
            prompt(act, topic)
            for topic, of_topic in harmful.items()
            for act in of_topic[sizes.acts_per_topic :]
        ),
        benign=tuple(prompt(act, "docstring") for act in asked),
    )


def _wishes(docstrings: Sequence[Docstring], split: Split, count: int, chance: random.Random) -> list[str]:
    """Return wishes of different docstrings, as many as there are up to `count`."""
    wishes = sorted({wish(doc) for doc in docstrings if doc.split is split and is_wish(doc)})
    return chance.sample(wishes, min(count, len(wishes)))
