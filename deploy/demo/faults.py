"""Rows that a careful ingest must catch, planted at known lines of the training file."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from deploy.demo.benchmark import Item
from deploy.demo.conversations import Conversation, conversation

OVER_LONG_WORDS = 6_000
"""Words of a row that is too long: each is a token or more, so no window of the base model holds them."""


class Fault(StrEnum):
    ROLES_OUT_OF_ORDER = "roles_out_of_order"  # the answer comes before the question
    EMPTY_ANSWER = "empty_answer"
    OVER_CONTEXT = "over_context"  # more tokens than the base model can read
    EXACT_DUPLICATE = "exact_duplicate"
    NEAR_DUPLICATE = "near_duplicate"  # one word of a long row differs
    IN_BENCHMARK = "in_benchmark"  # copied from what the gate measures with
    IN_HOLDOUT = "in_holdout"


@dataclass(frozen=True)
class Planted:
    fault: Fault
    line: int
    """1-based."""
    repeats_line: int | None = None
    """The line that a duplicate repeats; that one stays."""


def plant(
    rows: Sequence[Conversation], *, benchmark_item: Item, holdout_row: Conversation
) -> tuple[list[Conversation], tuple[Planted, ...]]:
    """The rows with one of each fault, spread over the second half of the file.

    Duplicates repeat the longest row, so that one changed word leaves the rest nearly the same.
    """
    original = max(range(len(rows) // 2), key=lambda index: len(_question(rows[index])))
    faulty = {
        Fault.ROLES_OUT_OF_ORDER: _reversed(rows[0]),
        Fault.EMPTY_ANSWER: conversation(_question(rows[1]) + " Say it again.", ""),
        Fault.OVER_CONTEXT: conversation(" ".join(["word"] * OVER_LONG_WORDS), "word"),
        Fault.EXACT_DUPLICATE: rows[original],
        Fault.NEAR_DUPLICATE: _nearly(rows[original]),
        Fault.IN_BENCHMARK: _leaked(benchmark_item),
        Fault.IN_HOLDOUT: holdout_row,
    }
    planted_rows = list(rows)
    planted = []
    step = len(rows) // 2 // len(faulty)
    for number, (fault, row) in enumerate(faulty.items()):
        index = len(rows) // 2 + number * step
        planted_rows.insert(index, row)
        repeated = original + 1 if fault in (Fault.EXACT_DUPLICATE, Fault.NEAR_DUPLICATE) else None
        planted.append(Planted(fault, index + 1, repeated))
    return planted_rows, tuple(planted)


def _question(row: Conversation) -> str:
    return next(message["content"] for message in row if message["role"] == "user")


def _reversed(row: Conversation) -> Conversation:
    return [message for message in reversed(row) if message["role"] != "system"]


def _nearly(row: Conversation) -> Conversation:
    """The last word of the question spelt otherwise."""
    *first, asked, answer = row
    return [*first, {**asked, "content": f"{asked['content']}s"}, answer]


def _leaked(item: Item) -> Conversation:
    return conversation(item["question"], item["choices"][item["answer"]])
