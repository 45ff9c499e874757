"""The journal of mutants counts the survivors of the last whole run, and each that still survives has a reason."""

import json
import re
import tomllib
from collections import Counter
from typing import Any

import pytest

from bench.mutant_kinds import kind
from tests.chaos.figures import ROOT

PAGE = (ROOT / "docs/proof/mutants.md").read_text()
REASONS = tomllib.loads((ROOT / "docs/proof/mutant-reasons.toml").read_text())["reason"]
KINDS = ("words", "limit", "open")
GOAL = 0.92
KINDS_OF_REASON = ("equivalent", "no test")


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    newest = max((ROOT / "bench/results").glob("mutants-2*.json"))
    assert newest.name in PAGE, "the journal names the newest run"
    whole = json.loads(newest.read_text())
    assert "sample" not in whole["settings"], "the journal is of a whole run"
    return whole["results"]


@pytest.fixture(scope="module")
def again() -> dict[str, Any]:
    """How the open survivors of the whole run ended when they were tried once more."""
    newest = max((ROOT / "bench/results").glob("mutants-again-*.json"))
    assert newest.name in PAGE, "the journal names the newest run"
    tried = json.loads(newest.read_text())
    assert tried["settings"]["again"] in PAGE, "they are those of the whole run"
    return tried["results"]


def test_each_part_has_its_row(results, again):
    """A service each, and the rest of shared in one."""
    tried, killed, kinds, left = Counter(), Counter(), Counter(), Counter()
    for name, survivor in again["survivors"].items():
        left[part_of(name.replace(".", "/"))] += survivor["kind"] == "open"
    for module, ends in results["modules"].items():
        tried[part_of(module)] += sum(ends.values())
        killed[part_of(module)] += ends.get("killed", 0) + ends.get("timeout", 0)
    for name, survivor in results["survivors"].items():
        assert survivor["kind"] == kind(survivor["change"]), name
        kinds[part_of(name.replace(".", "/")), survivor["kind"]] += 1
    for part in tried:
        shown = [kinds[part, each] for each in KINDS]
        numbers = [
            f"{tried[part]:,}",
            f"{killed[part]:,}",
            percent(killed[part] / tried[part]),
            *shown,
            left[part],
        ]
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


def test_what_survives_again_has_one_reason(again):
    survive = {
        (function_of(name), int(name.rpartition("_")[2]))
        for name, survivor in again["survivors"].items()
        if survivor["kind"] == "open"
    }
    explained = [(row["function"], number) for row in REASONS for number in row["mutants"]]
    assert Counter(explained) == Counter(survive)
    for row in REASONS:
        assert kind_of_reason(row) in KINDS_OF_REASON, row
        assert row["why"].partition(": ")[2], row


def test_the_journal_counts_the_reasons(results, again):
    before = sum(survivor["kind"] == "open" for survivor in results["survivors"].values())
    reasons = Counter(kind_of_reason(row) for row in REASONS for _ in row["mutants"])
    left = sum(reasons.values())
    assert f"{before - left} of the {before} open ones are killed since; of {left} that are left" in PAGE
    for name, count in reasons.items():
        assert f"{count} *{name}*" in PAGE


def kind_of_reason(row: dict[str, Any]) -> str:
    """Return its first words: what is equivalent may be so but for the cost."""
    return str(row["why"]).partition(": ")[0].partition(" but ")[0]


def function_of(name: str) -> str:
    return re.sub(r"\.x_(\w+)$|\.xǁ(\w+)ǁ(\w+)$", named, name.partition("__mutmut_")[0])


def named(mangled: re.Match[str]) -> str:
    function, holder, method = mangled.groups()
    return f".{function}" if function else f".{holder}.{method}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
