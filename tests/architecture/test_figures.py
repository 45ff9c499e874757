"""What the documents publish can be traced: to a test that notes it, to a file that has it, to the journal behind it."""

import ast
import fnmatch
import itertools
import re
from functools import cache
from pathlib import Path

import pytest

from tests.chaos.figures import DOCUMENT, ROOT, Row, rows

ROWS = [row for row in rows(DOCUMENT.read_text()) if isinstance(row, Row)]
PAGES = ("reliability.md", "performance.md")
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/proof/fleet.md",
    *(f"docs/{folder}{page}" for page in PAGES for folder in ("", "proof/")),
)
IMPORTS_NOTE = re.compile(r"from tests\.chaos\.scale import .*\bnote\b")
FIGURE = re.compile(r"\d[\d,.]*\d(?:e-\d+)?|\d")
RESULT = re.compile(r"bench/results/[\w.*-]+\.jsonl?")


@cache
def notes_of(path: Path) -> set[str]:
    """The names that a file passes to `note`."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [
        call.args[0]
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "note" and call.args
    ]
    return {each.value for each in named if isinstance(each, ast.Constant)}


def files_of(row: Row) -> list[Path]:
    return [path for name in row.files for path in (ROOT / "tests").glob(name)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.cells[0])
def test_a_row_names_its_tests_and_what_they_note(row: Row):
    assert [name for name in row.files if not [*(ROOT / "tests").glob(name)]] == [], (
        "files that are not there"
    )
    assert row.notes, "a row has notes: `file.py` (name, name)"
    noted = {name for path in files_of(row) for name in notes_of(path)}
    assert set(row.notes) <= noted, f"expected one of {sorted(noted)}"


def test_every_note_has_its_row():
    noting = [path for path in (ROOT / "tests").rglob("*.py") if IMPORTS_NOTE.search(path.read_text())]
    noted = {name for path in noting for name in notes_of(path)}
    assert noted == {name for row in ROWS for name in row.notes}


def test_make_chaos_runs_the_tests_of_every_row():
    listed = re.search(r"^CHAOS := (.*?)^[A-Z]+ ", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    paths = listed[1].replace("\\", " ").split()
    tests = {
        str(path.relative_to(ROOT)) for row in ROWS for path in files_of(row) if path.name.startswith("test_")
    }
    assert {each for each in tests if not any(fnmatch.fnmatch(each, f"{path}*") for path in paths)} == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_file_of_figures_that_is_named_is_there(document: str):
    named = RESULT.findall((ROOT / document).read_text())
    assert [name for name in named if not [*ROOT.glob(name)]] == []


def figures_for_readers(page: str) -> set[str]:
    """Numbers in the column `figure` of a page."""
    lines = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("| ")]
    head = next(i for i, line in enumerate(lines) if "| figure |" in line)
    column = [cell.strip() for cell in lines[head].split("|")].index("figure")
    return {
        figure
        for line in itertools.takewhile(
            lambda line: line.count("|") == lines[head].count("|"), lines[head + 1 :]
        )
        for figure in FIGURE.findall(line.split("|")[column])
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_figure_for_readers_is_one_of_the_journal(page: str):
    figures = figures_for_readers(page)
    assert len(figures) > 10
    journal = {*FIGURE.findall((ROOT / "docs/proof" / page).read_text())}
    assert figures - journal == set()
