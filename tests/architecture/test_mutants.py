"""The journal of mutants counts the survivors of the last whole run, and says what the tests leave out where many survived."""

import json
import re
from collections import Counter
from typing import Any

import pytest

from bench.mutant_kinds import kind
from tests.chaos.figures import ROOT

PAGE = (ROOT / "docs/proof/mutants.md").read_text()
ROW = re.compile(r"^\| `(?P<function>[\w.]+)` \| (?P<open>\d+) \| (?P<reason>[^|]+) \|$", re.MULTILINE)
KINDS = ("words", "limit", "open")
GOAL = 0.92
MANY = 10
"""Open survivors of one function, of which the journal says why."""


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    newest = max((ROOT / "bench/results").glob("mutants-*.json"))
    assert newest.name in PAGE, "the journal names the newest run"
    whole = json.loads(newest.read_text())
    assert "sample" not in whole["settings"], "the journal is of a whole run"
    return whole["results"]


def test_each_part_has_its_row(results):
    """A service each, and the rest of shared in one."""
    tried, killed, kinds = Counter(), Counter(), Counter()
    for module, ends in results["modules"].items():
        tried[part_of(module)] += sum(ends.values())
        killed[part_of(module)] += ends.get("killed", 0) + ends.get("timeout", 0)
    for name, survivor in results["survivors"].items():
        assert survivor["kind"] == kind(survivor["change"]), name
        kinds[part_of(name.replace(".", "/")), survivor["kind"]] += 1
    for part in tried:
        shown = [kinds[part, each] for each in KINDS]
        numbers = [f"{tried[part]:,}", f"{killed[part]:,}", percent(killed[part] / tried[part]), *shown]
        assert f"| {part} | {' | '.join(map(str, numbers))} |" in PAGE


def part_of(path: str) -> str:
    top, folder, *rest = path.split("/")
    return (
        f"`{top}/{folder}`"
        if top == "services" or len(rest) > 1 or folder in ("audit", "messaging")
        else "shared, the rest"
    )


def test_the_share_that_was_killed_reaches_the_goal_and_is_the_one_in_the_journal(results):
    tried = sum(sum(ends.values()) for ends in results["modules"].values())
    killed = tried - len(results["survivors"])
    assert killed / tried >= GOAL
    assert f"{killed:,} of {tried:,} mutants are killed, {percent(killed / tried)}" in PAGE


def test_functions_with_many_open_survivors_are_explained(results):
    left = Counter(
        re.sub(r"\.x_(\w+)$|\.xǁ(\w+)ǁ(\w+)$", named, name.partition("__mutmut_")[0])
        for name, survivor in results["survivors"].items()
        if survivor["kind"] == "open"
    )
    many = {function: count for function, count in left.items() if count > MANY}
    assert {row["function"]: int(row["open"]) for row in ROW.finditer(PAGE)} == many


def named(mangled: re.Match[str]) -> str:
    function, holder, method = mangled.groups()
    return f".{function}" if function else f".{holder}.{method}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
