"""The tables of docs/proof/reliability.md with what a run saw: `python -m tests.chaos.figures FILE` prints them in Markdown.

FILE is what CHAOS_FIGURES named during the run, one line for each `note`.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/proof/reliability.md"
HEADER = "| row | test | seen |"
NAMED = re.compile(r"`([a-z_0-9*/]+\.py)`(?: \(([^)]+)\))?")
NOT_SEEN = "not in this file"
TOO_FINE = 100
"""From here on a figure has no decimals."""


@dataclass(frozen=True)
class Row:
    """A line of a table: the parts of it, and which notes of which files write its column `seen`."""

    cells: tuple[str, ...]
    files: tuple[str, ...]
    notes: tuple[str, ...]


def rows(document: str) -> Iterator[Row | str]:
    """Every line of the tables that have the column `seen`, its header and its rule as they are."""
    within = False
    for line in document.splitlines():
        if line.startswith(HEADER):
            within = True
            yield line
        elif within and line.startswith("|---"):
            yield line
        elif within and line.startswith("|"):
            yield _row(line)
        elif within:
            within = False
            yield ""


def _row(line: str) -> Row:
    cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
    named = NAMED.findall(cells[1])
    notes = tuple(name.strip() for _, names in named if names for name in names.split(","))
    return Row(cells, tuple(file for file, _ in named), notes)


def seen(lines: Iterable[str]) -> dict[str, list[dict[str, float]]]:
    """The figures of each note, in the order in which they were written."""
    notes = defaultdict(list)
    for line in lines:
        noted = json.loads(line)
        notes[noted["name"]].append(noted["figures"])
    return notes


def describe(name: str, figures: Sequence[Mapping[str, float]]) -> str:
    """One note in words: how often it was written, the range and median of each figure."""
    often = f" ({len(figures)} times)" if len(figures) > 1 else ""
    keys = dict.fromkeys(key for each in figures for key in each)
    parts = [_figure(key, [each[key] for each in figures if key in each]) for key in keys]
    return f"{name}{often}: {', '.join(parts)}"


def _figure(key: str, values: Sequence[float]) -> str:
    words = key.replace("_", " ")
    least, most = _number(min(values)), _number(max(values))
    if least == most:
        return f"{words} {least}"
    return f"{words} {_number(median(values))} ({least}–{most})"


def _number(value: float) -> str:
    return (
        f"{value:,.0f}"
        if value == int(value) or abs(value) >= TOO_FINE
        else f"{value:.2g}"
        if value < 1
        else f"{value:.1f}"
    )


def table(document: str, noted: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    return "\n".join(
        each if isinstance(each, str) else _printed(each, noted) for each in rows(document)
    ).strip()


def _printed(row: Row, noted: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    parts = [describe(name, noted[name]) if name in noted else f"{name}: {NOT_SEEN}" for name in row.notes]
    return f"| {' | '.join((*row.cells[:2], '; '.join(parts), *row.cells[3:]))} |"


def source(lines: Iterable[str]) -> str:
    """Of which commit, at which size and when."""
    noted = [json.loads(line) for line in lines]
    commits, scales, seeds = (
        sorted({str(each[key]) for each in noted}) for key in ("commit", "scale", "seed")
    )
    days = sorted({each["time"][:10] for each in noted})
    return f"Seen on {', '.join(days)} at {', '.join(commits)}, size {', '.join(scales)}, seed {', '.join(seeds)}."


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    print(source(lines), table(DOCUMENT.read_text(), seen(lines)), sep="\n\n")  # noqa: T201
