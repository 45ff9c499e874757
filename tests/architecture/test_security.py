"""Who may do what was tried: every test that docs/security.md names is there, and every kind of principal has one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
NAMED = re.compile(r"`([\w/]*(?:\.py)?)::(\w+)`")
SECTION = "## Who may do what, and what was tried\n"


def lines() -> list[str]:
    _, _, section = (ROOT / "docs/security.md").read_text().partition(SECTION)
    table, _, _ = section.partition("\n## ")
    return [line for line in table.splitlines() if line.startswith("| ")][1:]


def named(line: str) -> list[tuple[str, str]]:
    """File and name of each test; one without a file is in the file before."""
    pairs, file = [], ""
    for path, name in NAMED.findall(line):
        file = path or file
        pairs.append((file, name))
    return pairs


@pytest.mark.parametrize("line", lines(), ids=lambda line: line.split("|")[1].strip())
def test_a_line_names_tests_that_are_there(line: str):
    assert len(named(line)) > 0 or "not tried" in line
    for file, name in named(line):
        assert re.search(rf"(def|class) {name}\b", (TESTS / file).read_text()), f"{file} has no {name}"
