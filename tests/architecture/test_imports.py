"""What a module of ours imports from another one of ours is there: pytest and mypy load only a part of them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.architecture.source import PACKAGES, ROOT

OURS = (*PACKAGES, "bench", "tests")


def files() -> Iterator[Path]:
    for package in OURS:
        yield from (ROOT / package).rglob("*.py")


def place_of(module: str) -> Path | None:
    """The file of a module or package; None where there is none."""
    path = ROOT / module.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names that a module binds anywhere: more than can be imported, and never fewer."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Import() | ast.ImportFrom():
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return frozenset(names)


def missing_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        if node.module.partition(".")[0] not in OURS:
            continue
        place = place_of(node.module)
        is_folder = (ROOT / node.module.replace(".", "/")).is_dir()
        for alias in node.names:
            is_module = is_folder and (
                place_of(f"{node.module}.{alias.name}")
                or (ROOT / node.module.replace(".", "/") / alias.name).is_dir()
            )
            if not is_module and (place is None or alias.name not in names_in(place)):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}.{alias.name}"


def test_every_import_of_our_own_is_there():
    assert [line for path in files() for line in missing_in(path)] == []
