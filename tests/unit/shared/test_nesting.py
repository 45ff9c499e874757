"""The rule holds whatever an interpreter's limits are: newer Pythons recurse further, or count differently."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shared.nesting import MAX_NESTING, TooDeep, require_shallow, shallow_json

REPOSITORY = Path(__file__).parents[3]
OUTCOMES = """
import json, sys
from services.ingest.pipeline.lines import Line, parse_object
from services.ingest.pipeline.rules import BadRow
from shared.messaging.delivery import Unreadable, read
from tests.unit.shared.test_reading import GOOD
from dataclasses import replace

def row(content):
    try:
        parse_object(Line(1, content, len(content)), max_row_bytes=1 << 20)
    except BadRow as problem:
        return problem.rule
    return "row"

def message(content):
    found = read(replace(GOOD, value=GOOD.value[:-1] + b', "unknown": ' + content + b"}"))
    return found.detail if isinstance(found, Unreadable) else "read"

sys.setrecursionlimit(int(sys.argv[1]))
told = {}
for depth in (30, 31, 32, 900, 2_000, 50_000):
    nested = b"[" * depth + b"]" * depth
    told[depth] = (row(b'{"a": ' + nested + b"}"), message(nested))
print(json.dumps(told))
"""


def outcomes(recursion_limit: int) -> dict[str, list[str]]:
    ended = subprocess.run(
        [sys.executable, "-c", OUTCOMES, str(recursion_limit)],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    return json.loads(ended.stdout)


@pytest.mark.parametrize("recursion_limit", [300, 1_000, 1_000_000])
def test_rows_and_messages_are_held_to_the_rule_and_not_to_the_interpreter(recursion_limit):
    shallow, deep = ["row", "read"], ["json.depth", "TooDeep: nested more than 32 levels deep"]
    assert outcomes(recursion_limit) == {
        "30": shallow,
        "31": shallow,
        "32": deep,
        "900": deep,
        "2000": deep,
        "50000": deep,
    }


@pytest.mark.parametrize("opened", ["[", '{"a":', '[{"a":', ' [ "]" , '])
def test_one_level_more_than_the_rule_is_too_deep(opened):
    levels = opened.count("[") + opened.count("{")
    require_shallow(opened * (MAX_NESTING // levels))
    with pytest.raises(TooDeep):
        require_shallow(opened * (MAX_NESTING // levels + 1))


@pytest.mark.parametrize("closed", ["[]" * 40, "{}" * 40, "[[{}]]" * 20])
def test_levels_that_were_closed_count_no_more(closed):
    for text in (closed + "[" * MAX_NESTING, "[" * (MAX_NESTING - 3) + closed + "[" * 3):
        require_shallow(text)
        with pytest.raises(TooDeep):
            require_shallow(text + "[")


@pytest.mark.parametrize("text", ["[" * 99, "{" * 99, '"' + "[" * 99, "\\" + "[" * 99, "]" * 99 + "["])
def test_brackets_in_a_text_are_no_levels(text):
    assert shallow_json(json.dumps({"a": text, "b": [text]}).encode()) == {"a": text, "b": [text]}


def test_many_brackets_side_by_side_are_not_deep():
    assert len(shallow_json(b"[" + b"[[]], " * 9_999 + b"[]]")) == 10_000


@pytest.mark.parametrize("hostile", ['"' + '\\"' * 400_000 + "[" * 40, '"' * 800_001 + "[" * 40, '\\"[' * 40])
def test_a_text_that_never_closes_its_strings_is_read_once(hostile):
    """A pattern that tried again at each quote would need hours."""
    require_shallow(hostile[:800_000])
