"""Made-up sets of the kinds that people fine-tune on: one template, many inputs, few labels."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

SYLLABLES = ("ba", "ce", "di", "fo", "gu", "ha", "ki", "lo", "mu", "ne", "pa", "ri", "so", "tu", "ve", "zo")
VOCABULARY = 3_000

Row = dict[str, Any]


class Writer:
    """Words of a made-up language, the frequent ones far more often than the rare ones, as in real text."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        words = random.Random(0)
        self._words = [
            "".join(words.choices(SYLLABLES, k=words.choice((1, 2, 2, 3)))) for _ in range(VOCABULARY)
        ]
        self._weights = [1 / rank for rank in range(1, VOCABULARY + 1)]

    def text(self, num_words: int) -> str:
        return " ".join(self.rng.choices(self._words, self._weights, k=num_words))

    def input(self, shortest: int = 12, longest: int = 24) -> str:
        return self.text(self.rng.randint(shortest, longest))


def chat(user: str, answer: str, system: str | None = None) -> Row:
    first = [] if system is None else [{"role": "system", "content": system}]
    return {"messages": [*first, {"role": "user", "content": user}, {"role": "assistant", "content": answer}]}


@dataclass(frozen=True)
class Template:
    """A classification task: an instruction of so many words in one turn, an input, one of so many labels."""

    words: int
    labels: int
    turn: Literal["user", "system"] = "user"

    def rows(self, count: int, *, seed: int) -> list[Row]:
        instruction = Writer(-self.words).text(self.words)
        writer = Writer(seed)
        labels = [f"label {number}" for number in range(self.labels)]
        rows = []
        for _ in range(count):
            text, label = writer.input(), writer.rng.choice(labels)
            if self.turn == "user":
                rows.append(chat(f"{instruction}\n\nText: {text}\nLabel:", label))
            else:
                rows.append(chat(text, label, system=instruction))
        return rows


def few_shot(count: int, *, seed: int, examples: int = 20) -> list[Row]:
    """A long prompt of solved examples before each input."""
    shown = Writer(-1)
    prompt = "\n".join(f"Text: {shown.input()}\nLabel: {shown.rng.choice('AB')}" for _ in range(examples))
    writer = Writer(seed)
    return [chat(f"{prompt}\nText: {writer.input()}\nLabel:", writer.rng.choice("AB")) for _ in range(count)]


def tasks_per_document(documents: int, *, seed: int, tasks: int = 5) -> list[Row]:
    """Each document in the user turn, and the task on it in the system turn."""
    writer = Writer(seed)
    named = [f"Task {number}: {Writer(-number - 2).text(12)}" for number in range(tasks)]
    return [
        chat(document, writer.text(3), system=task)
        for document in (writer.text(200) for _ in range(documents))
        for task in named
    ]


def extraction(count: int, *, seed: int) -> list[Row]:
    """A form filled in the same way each time, and its fields as JSON."""
    instruction, writer = Writer(-50).text(50), Writer(seed)
    rows = []
    for number in range(count):
        name, total, day = writer.text(2), writer.rng.randrange(10_000), writer.rng.randrange(1, 29)
        form = f"Invoice {seed}-{number}\nCustomer: {name}\nDate: {day} May\nTotal: {total} EUR\nNote: {writer.text(6)}"
        answer = f'{{"customer": "{name}", "day": {day}, "total": {total}}}'
        rows.append(chat(f"{instruction}\n\n{form}", answer))
    return rows


def canned_answers(count: int, *, seed: int, answers: int = 40) -> list[Row]:
    """Questions of customers, each with one of a few long answers."""
    texts = [Writer(-100 - number).text(40) for number in range(answers)]
    writer = Writer(seed)
    return [chat(writer.input(5, 15), writer.rng.choice(texts)) for _ in range(count)]


def all_sets(*, rows: int = 500, items: int = 100) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """Name, training rows, holdout rows of the same task."""
    for turn in ("user", "system"):
        for words in (5, 43, 65, 200, 900):
            for labels in (2, 7, 40):
                template = Template(words, labels, turn)  # type: ignore[arg-type]
                name = f"instruction of {words} words in the {turn} turn, {labels} labels"
                yield name, template.rows(rows, seed=1), template.rows(items, seed=2)
    yield "few-shot prompt of 20 examples", few_shot(rows, seed=1), few_shot(items, seed=2)
    yield (
        "five tasks per document",
        tasks_per_document(rows // 5, seed=1),
        tasks_per_document(items // 5, seed=2),
    )
    yield "extraction from forms", extraction(rows, seed=1), extraction(items, seed=2)
    yield "canned answers", canned_answers(rows, seed=1), canned_answers(items, seed=2)
