"""What a registered benchmark or suite asks, whatever the fields of its rows are."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.ingest.pipeline.lines import LineReader, parse_object
from services.ingest.pipeline.rules import BadRow, FileRefused
from services.ingest.pipeline.text import ANSWER_ROLES, GRAM_WORDS, SYSTEM_ROLES, fold
from shared.parquet import open_rows
from shared.row_files import MAX_GATE_BYTES

MAX_ITEM_BYTES = 4 << 20
MAX_ITEMS = 5_000_000

QUESTION_FIELDS = frozenset(
    {"question", "prompt", "input", "query", "problem", "goal", "sentence", "ctx", "text"}
)
CONTEXT_FIELDS = frozenset({"passage", "context", "article", "document", "story", "support", "premise"})


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that the gate asks. Each text of `asked` is evidence alone."""

    line: int
    asked: tuple[str, ...]
    answer: str = ""
    """Answer that follows a short question, as far as it is known."""


def read_items(name: str, path: Path) -> Iterator[Item]:
    with open_rows(path, at_most_bytes=MAX_GATE_BYTES) as stream:
        yield from items_of_rows(
            name, LineReader(stream, name=name, max_row_bytes=MAX_ITEM_BYTES, max_rows=MAX_ITEMS)
        )


def items_of_rows(name: str, reader: LineReader) -> Iterator[Item]:
    for line in reader:
        try:
            yield item_of_row(line.number, parse_object(line, max_row_bytes=MAX_ITEM_BYTES))
        except BadRow as error:
            raise FileRefused(
                "benchmark_unreadable", f"registered file {name}, line {line.number}: {error}"
            ) from None


def item_of_row(line: int, row: dict[str, Any]) -> Item:
    """Return what the row asks: the turns of a conversation or the prompt; of other rows each long text, a question
    and the row as a whole."""
    messages = row.get("messages")
    if isinstance(messages, list):
        turns = [each for each in messages if isinstance(each, dict)]
        asked = [turn for turn in turns if turn.get("role") not in ANSWER_ROLES | SYSTEM_ROLES]
        answers = [turn for turn in turns if turn.get("role") in ANSWER_ROLES]
        return Item(line, (_contents(asked),), _contents(answers))
    if isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str):
        return Item(line, (fold(row["prompt"]),), fold(row["completion"]))
    texts = list(strings_of(row))
    whole = " ".join(texts)
    asked_texts = [text for text in (*texts, whole) if _is_long(text)]
    # A short question about a passage is none without it.
    if not row.keys() & CONTEXT_FIELDS:
        questions = (
            value for name, value in row.items() if name in QUESTION_FIELDS and isinstance(value, str)
        )
        asked_texts += [fold(text) for text in questions if not _is_long(text)]
    return Item(line, tuple(asked_texts))


def strings_of(value: Any) -> Iterator[str]:
    """Yield every string in document order, except the roles of messages."""
    if isinstance(value, str):
        yield fold(value)
    elif isinstance(value, dict):
        for key, child in value.items():
            if key != "role":
                yield from strings_of(child)
    elif isinstance(value, list):
        for child in value:
            yield from strings_of(child)


def _contents(turns: list[dict[str, Any]]) -> str:
    return " ".join(text for turn in turns for text in strings_of(turn.get("content")))


def _is_long(text: str) -> bool:
    return len(text.split()) >= GRAM_WORDS
