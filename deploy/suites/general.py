"""The built-in benchmark `general`: short multiple-choice items about English and what everybody knows.

Four kinds, from what the smallest language model can distinguish to what takes some learning: the order of words, the
agreement of words, what fits into a sentence, and common knowledge. Made from lists and templates by a fixed rule, so
that every machine makes the same file.
"""

import hashlib
import random
from collections.abc import Iterator
from typing import Any

from deploy.suites.words import (
    DAYS,
    FITTING,
    HOMES,
    MONTHS,
    NUMBERS,
    OPPOSITES,
    PEOPLE,
    PLACES,
    PLURALS,
    THINGS,
    VERBS,
)

Row = dict[str, Any]

SEED = 20
WORD_ORDER_ITEMS = 480
AGREEMENT_ITEMS = 300
WRONG_ORDERS = 3


def rows() -> list[Row]:
    """`{question, choices, answer}` as a benchmark of kind `multiple_choice` has them; no question twice."""
    draw = random.Random(SEED)  # noqa: S311
    items = [*_word_order(draw), *_agreement(draw), *_fitting(draw), *_knowledge(draw)]
    by_answer = {(item["question"], item["choices"][item["answer"]]): item for item in items}
    return sorted(by_answer.values(), key=_scattered)


def _word_order(draw: random.Random) -> Iterator[Row]:
    """One sentence in its order, and the same words in others."""
    sentences = sorted(
        f"the {person} {past} the {adjective} {thing} {place}"
        for person in PEOPLE
        for past, _, _ in VERBS
        for adjective, thing in THINGS
        for place in PLACES
    )
    for sentence in draw.sample(sentences, WORD_ORDER_ITEMS):
        words = sentence.split()
        wrong: list[str] = []
        while len(wrong) < WRONG_ORDERS:
            mixed = " ".join(draw.sample(words, len(words)))
            if mixed not in (sentence, *wrong):
                wrong.append(mixed)
        yield _item(draw, "Which of these is a sentence?", sentence, wrong)


def _agreement(draw: random.Random) -> Iterator[Row]:
    """Number of subject and verb, form of verb after an auxiliary."""
    cases = []
    for singular, plural in PLURALS:
        for _, base, third in VERBS:
            cases += [
                (f"every day the {singular}", f"{third} it", [f"{base} it"]),
                (f"every day the {plural}", f"{base} it", [f"{third} it"]),
                (f"tomorrow the {singular} will", f"{base} it", [f"{third} it"]),
            ]
    for begin, right, wrong in draw.sample(cases, AGREEMENT_ITEMS):
        whole = [f"{begin} {each}" for each in wrong]
        yield _item(draw, "Which of these is right?", f"{begin} {right}", whole)


def _fitting(draw: random.Random) -> Iterator[Row]:
    """The word that a sentence asks for, among words that other sentences ask for."""
    words = sorted({word for word, _ in FITTING})
    for word, sentences in FITTING:
        for sentence in sentences:
            wrong = draw.sample([each for each in words if each != word], 3)
            yield _item(draw, f"{sentence} ...", word, wrong)


def _knowledge(draw: random.Random) -> Iterator[Row]:
    yield from _series(draw, DAYS, "day of the week")
    yield from _series(draw, MONTHS, "month of the year")
    yield from _sums(draw)
    antonyms = sorted(word for pair in OPPOSITES for word in pair)
    for pair in OPPOSITES:
        for word, other in (pair, pair[::-1]):
            wrong = draw.sample([each for each in antonyms if each not in pair], 3)
            yield _item(draw, f"The opposite of {word} is", other, wrong)
    homes = sorted({home for _, home in HOMES})
    for who, home in HOMES:
        wrong = draw.sample([each for each in homes if each != home], 3)
        yield _item(draw, f"Where do you find {who}?", home, wrong)


def _series(draw: random.Random, names: tuple[str, ...], what: str) -> Iterator[Row]:
    for index, name in enumerate(names):
        for word, step in (("after", 1), ("before", -1)):
            right = names[(index + step) % len(names)]
            wrong = draw.sample([each for each in names if each not in (name, right)], 3)
            yield _item(draw, f"The {what} {word} {name} is", right, wrong)


def _sums(draw: random.Random) -> Iterator[Row]:
    for first, one in enumerate(NUMBERS):
        for second, other in enumerate(NUMBERS[: len(NUMBERS) - first]):
            right = NUMBERS[first + second]
            wrong = draw.sample([each for each in NUMBERS if each != right], 3)
            yield _item(draw, f"{one} plus {other} is", right, wrong)


def _item(draw: random.Random, question: str, right: str, wrong: list[str]) -> Row:
    choices = [right, *wrong]
    draw.shuffle(choices)
    return {"question": question, "choices": choices, "answer": choices.index(right)}


def _scattered(item: Row) -> str:
    """Kinds mixed, so that any part of the file is like the whole."""
    return hashlib.sha256(f"{item['question']} {item['choices']}".encode()).hexdigest()
