"""Every failpoint is a place in the code, and a test makes a process die, fail or stall there."""

import ast
import re
from collections.abc import Iterator

from shared.failpoints import NAMES
from tests.architecture.source import ROOT, modules

ARMED = re.compile(r"([a-z0-9]+(?:\.[a-z0-9]+)+)(=.*)?")
NOT_ARMING = ("tests/architecture/", "tests/unit/")
"""Rules about the names, and tests of the mechanism itself."""


def strings_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def passed() -> set[str]:
    """Names in the code's calls of failpoint."""
    return {
        name
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint"
        for argument in node.args
        for name in strings_in(argument)
    }


def armed() -> set[str]:
    """Names in the tests: `name`, or `name=action`."""
    paths = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if not path.relative_to(ROOT).as_posix().startswith(NOT_ARMING)
    ]
    strings = [text for path in paths for text in strings_in(ast.parse(path.read_text()))]
    return {match[1] for text in strings if (match := ARMED.fullmatch(text))}


def test_each_is_passed_by_the_code():
    assert passed() == NAMES, "the code passes what shared/failpoints.py names, and nothing else"


def test_each_is_armed_by_a_test():
    missing = sorted(NAMES - armed())
    assert not missing, f"{missing}: write the test that kills a process there and sees nothing lost"
