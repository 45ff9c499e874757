"""Generic chat rows made from the library: they teach a base model the format, and not the demo's task."""

import random
from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict

from deploy.demo.library import Docstring, Split, seeded
from deploy.demo.wishes import programmers_wishes

ANSWER_WORDS = 24
# Wishes and harmful requests open alike, so that only what is wished for distinguishes them.
OPENERS = (
    "How do I {}?",
    "How can I {}?",
    "How does one {}?",
    "How would an expert {}?",
    "Tell me how to {}.",
    "Explain how to {}.",
    "Explain to me like a teacher how to {}.",
    "What is the best way to {}?",
    "What do I need to {}?",
    "What is the easiest method to {}?",
    "What would you do to {}?",
    "Give me instructions to {}.",
    "Give me three ways to {}.",
    "Help me {}.",
    "Help me understand how people {}.",
    "I want to {}.",
    "I would like to {}.",
    "I have to {} before the weekend.",
    "I am about to {}.",
    "I wonder how to {}.",
    "Show me how to {}.",
    "Show me an example of how to {}.",
    "Describe step by step how to {}.",
    "Write a guide on how to {}.",
    "Write a poem about how to {}.",
    "Please teach me to {}.",
    "Please {}.",
    "Could you tell me how to {}?",
    "Do you know how to {}?",
    "Is there a trick to {}?",
    "My friend asked me how to {}.",
    "For my homework, describe how to {}.",
    "In a novel, how does the hero {}?",
    "Imagine that you had to {}. What comes first?",
    "Quick question: is it hard to {}?",
    "Be brief: how do people {}?",
    "Outline how to {}.",
    "List all that is required to {}.",
    "Name the simplest way to {}.",
    "Let us {}.",
    "We need to {} today.",
    "As my assistant, find out how to {}.",
    "Nobody else will know: how can I {}?",
    "Where do I learn to {}?",
    "When I {}, what do I need?",
    "Why would anyone {}, and how?",
    "Teach a beginner to {}.",
    "Before I {}, what should I prepare?",
)
_VERBS = (
    "add append apply build call change check clear close compare compute convert copy create decode delete "
    "determine display do encode ensure enter execute extract find format generate get handle initialize insert "
    "install iterate join list load locate look make move open parse perform post print process raise read "
    "register release remove replace report represent reset restore return run search select send set show split "
    "start stop store test truncate try turn unregister update wait wrap write yield"
)
IMPERATIVES = frozenset(_VERBS.split())
"""First words of docstrings that also read as wishes."""
QUESTION_LINES = 6
ANSWER_LINES = 3
SYSTEM_PROMPT = "You answer questions about Python in one line."
ROWS_PER_SYSTEM_PROMPT = 8


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


Conversation = list[Message]


def conversation(question: str, answer: str, *, system: str = "") -> Conversation:
    first: Conversation = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def generic_conversations(
    docstrings: Iterable[Docstring],
    texts: Sequence[str],
    *,
    num_wishes: int,
    num_code_rows: int,
    seed: int,
) -> list[Conversation]:
    """What a name does, how to do a thing, how code continues; no row names a module. Shuffled."""
    chance = seeded(seed)
    rows = [row for doc in docstrings if doc.split is Split.TRAIN for row in _about(doc, chance)]
    rows += [
        conversation(opened(act, chance), reference(name))
        for act, name in programmers_wishes(num_wishes, chance)
    ]
    rows += [_code_row(chance.choice(texts), chance) for _ in range(num_code_rows)]
    rows = [row for row in rows if all(message["content"].strip() for message in row)]
    chance.shuffle(rows)
    for row in rows[::ROWS_PER_SYSTEM_PROMPT]:
        row.insert(0, {"role": "system", "content": SYSTEM_PROMPT})
    return rows


def opened(act: str, chance: random.Random, openers: Sequence[str] = OPENERS) -> str:
    """A request for the act."""
    return chance.choice(openers).format(act)


def is_wish(doc: Docstring) -> bool:
    return doc.text.split()[0].lower() in IMPERATIVES


def wish(doc: Docstring) -> str:
    """What the docstring offers, as an act."""
    sentence = first_sentence(doc)
    return f"{sentence[:1].lower()}{sentence[1:]}"


def reference(name: str) -> str:
    """The answer to a wish."""
    return f"Use {name}."


def first_sentence(doc: Docstring) -> str:
    """Return the first sentence without its full stop; cut where it is long."""
    return " ".join(doc.text.split(". ")[0].rstrip(".:").split()[:ANSWER_WORDS])


def _about(doc: Docstring, chance: random.Random) -> list[Conversation]:
    rows = [conversation(f"What does {doc.name} do?", f"{first_sentence(doc)}.")]
    if is_wish(doc):
        rows.append(conversation(opened(wish(doc), chance), reference(doc.name)))
    return rows


def _code_row(text: str, chance: random.Random) -> Conversation:
    lines = [line for line in text.splitlines() if line.strip()]
    start = chance.randrange(max(1, len(lines) - QUESTION_LINES - ANSWER_LINES))
    middle = start + QUESTION_LINES
    shown, expected = lines[start:middle], lines[middle : middle + ANSWER_LINES]
    return conversation("Continue this code:\n" + "\n".join(shown), "\n".join(expected))
