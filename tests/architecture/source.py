"""The code of the platform as syntax trees, read once."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "shared", "services", "ops", "cli", "deploy")


@dataclass(frozen=True)
class Module:
    path: Path
    tree: ast.Module
    lines: int

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def import_name(self) -> str:
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def imports(self) -> Iterator[str]:
        """Full names of everything imported anywhere in the module."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def attributes(self) -> Iterator[ast.Attribute]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


@cache
def modules() -> tuple[Module, ...]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return tuple(Module(path, ast.parse(text := path.read_text()), text.count("\n")) for path in paths)


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    has_docstring = ast.get_docstring(function) is not None
    first = function.body[1] if has_docstring and len(function.body) > 1 else function
    begin = first.lineno if has_docstring and len(function.body) > 1 else function.lineno
    return (function.end_lineno or begin) - begin + 1
