"""stdout is the result, for people or, with --json, for machines; everything else goes to stderr.

What is shown was written by tenants, too: nothing of it steers a terminal or is read as markup.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

stderr = Console(stderr=True, highlight=False, soft_wrap=True)
PIPED_WIDTH = 1_000
"""Columns of a table that no terminal shows: none is folded."""
stdout = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPED_WIDTH)
STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but tab and line end, changes of the direction of writing, halves of surrogate pairs."""


class Output:
    """One per run; `as_json` is the option --json."""

    as_json = False


def show(value: Any, text: str) -> None:
    if Output.as_json:
        show_json(value)
    else:
        write(text)


def show_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, default=str)
    print(STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def write(text: str, *, end: str = "\n") -> None:
    stdout.print(legible(text), markup=False, end=end)


def legible(text: str) -> str:
    """The text with what would steer a terminal written out: `\\x1b[2J`."""
    return STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def show_table(values: Iterable[Any], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    if Output.as_json:
        return show_json(list(values))
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    stdout.print(table)
    return None


def note(text: str) -> None:
    stderr.print(legible(text), markup=False)


def _cell(value: Any) -> Text:
    """Put the value into one line: a second one would look like another row."""
    words = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return Text("" if words is None else legible(str(words)).replace("\n", "\\n"))
