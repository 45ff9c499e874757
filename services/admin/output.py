"""stdout is the result, for people or, with --json, for machines; everything else goes to stderr."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

stderr = Console(stderr=True, highlight=False, soft_wrap=True)
PIPED_WIDTH = 1_000
"""Columns of a table that no terminal shows: none is folded."""
stdout = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPED_WIDTH)


class Output:
    """One per run; `as_json` is the option --json."""

    as_json = False


def show(value: Any, text: str) -> None:
    if Output.as_json:
        print(json.dumps(value, ensure_ascii=False, default=str))
    else:
        stdout.print(text, markup=False)


def show_table(values: Iterable[Any], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    if Output.as_json:
        print(json.dumps(list(values), ensure_ascii=False, default=str))
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(("" if cell is None else str(cell)) for cell in row))
    stdout.print(table)


def note(text: str) -> None:
    stderr.print(text, markup=False)
