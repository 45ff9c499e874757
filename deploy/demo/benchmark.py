"""A multiple-choice benchmark from held-out source text: which line comes next?"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import TypedDict

from deploy.demo.library import Source, seeded

SHOWN_LINES = 4
NUM_CHOICES = 2
MIN_LINE_CHARS = 24
MAX_LINE_CHARS = 72
MIN_LINE_WORDS = 6
MIN_QUESTION_WORDS = 13
MAX_QUESTION_CHARS = 320
MAX_SHUFFLES = 40
"""Tries per line; one whose words allow too few other orders is not asked."""
WORD = re.compile(r"\w+")


class Item(TypedDict):
    question: str
    choices: list[str]
    answer: int


def make_benchmark(sources: Sequence[Source], *, num_items: int, seed: int) -> list[Item]:
    """Items from held-out files only. The wrong lines are the right one with its words in another order.

    So all choices are equally long and have the same words: only their order identifies the right one.
    Raises: ValueError if the files hold fewer than `num_items` fitting places.
    """
    chance = seeded(seed)
    places = {line: shown for source in sources if source.is_held_out for shown, line in _places(source)}
    lines = sorted(places)
    chance.shuffle(lines)
    items = [item for line in lines if (item := _item(places[line], line, chance))]
    if len(items) < num_items:
        raise ValueError(f"held-out sources have {len(items)} fitting places, expected at least {num_items}")
    return items[:num_items]


def _places(source: Source) -> Iterator[tuple[str, str]]:
    """Some lines in a row, and the next one. No line is in two of them."""
    lines = [line.strip() for line in source.text.splitlines() if line.strip()]
    start = 0
    while start + SHOWN_LINES < len(lines):
        end = start + SHOWN_LINES
        shown, line = "\n".join(lines[start:end]), lines[end]
        is_asked = _is_asked(shown, line)
        if is_asked:
            yield shown, line
        start += SHOWN_LINES + 1 if is_asked else 1


def _is_asked(shown: str, line: str) -> bool:
    return (
        MIN_LINE_CHARS <= len(line) <= MAX_LINE_CHARS
        and len(set(WORD.findall(line))) >= MIN_LINE_WORDS
        and len(shown) <= MAX_QUESTION_CHARS
        and len(shown.split()) >= MIN_QUESTION_WORDS
        and line not in shown
    )


def _item(shown: str, line: str, chance: random.Random) -> Item | None:
    choices = [line]
    for _ in range(MAX_SHUFFLES):
        shuffled = _shuffled(line, chance)
        if shuffled not in choices:
            choices.append(shuffled)
        if len(choices) == NUM_CHOICES:
            chance.shuffle(choices)
            return Item(question=shown, choices=choices, answer=choices.index(line))
    return None


def _shuffled(line: str, chance: random.Random) -> str:
    """Return the line with its words in other places; whatever is between words stays."""
    words = WORD.findall(line)
    chance.shuffle(words)
    rest = iter(words)
    return WORD.sub(lambda _: next(rest), line)
