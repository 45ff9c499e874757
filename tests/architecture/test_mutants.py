"""Every mutant that survived the last mutation run stands in the journal with the reason, and its share is the one that was counted."""

import fnmatch
import json
import re
from typing import Any

import pytest

from tests.chaos.figures import ROOT

PAGE = (ROOT / "docs/proof/mutants.md").read_text()
ROW = re.compile(r"^\| `(?P<mutants>[\w.*ǁ]+)` \| (?P<kind>\w+) \| (?P<reason>[^|]+) \|$", re.MULTILINE)
KINDS = ("equivalent", "stack", "open")
GOAL = 0.92


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    newest = max((ROOT / "bench/results").glob("mutants-*.json"))
    assert newest.name in PAGE, "the journal names the newest run"
    return json.loads(newest.read_text())["results"]


@pytest.fixture(scope="module")
def rows() -> list[re.Match[str]]:
    return [*ROW.finditer(PAGE)]


def test_every_survivor_has_its_row_and_every_row_its_survivor(results, rows):
    named = [row["mutants"] for row in rows]
    unexplained = [
        name for name in results["survivors"] if not any(fnmatch.fnmatchcase(name, each) for each in named)
    ]
    assert unexplained == []
    assert [each for each in named if not fnmatch.filter(results["survivors"], each)] == []
    assert {row["kind"] for row in rows} <= set(KINDS)


def test_the_share_of_meaningful_mutants_that_were_killed_is_the_one_that_the_journal_names(results, rows):
    tried = sum(sum(ends.values()) for ends in results["modules"].values())
    equivalent = {
        name
        for row in rows
        if row["kind"] == "equivalent"
        for name in fnmatch.filter(results["survivors"], row["mutants"])
    }
    killed, meaningful = tried - len(results["survivors"]), tried - len(equivalent)
    assert killed / meaningful >= GOAL
    assert f"{killed:,} of {meaningful:,} meaningful mutants" in PAGE
    assert f"{killed / meaningful:.1%}".replace("%", " %") in PAGE
