"""The standard library as text: its sources, its docstrings, and what is held out of training."""

import ast
import hashlib
import random
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path, PurePosixPath

# Tests and generated tables teach a model nothing; lib2to3 and encodings are mostly such tables.
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "encodings", "pydoc_data"}
)
SKIPPED_PREFIXES = ("_sysconfigdata",)
FILES_PER_HELD_OUT_FILE = 12
MIN_DOCSTRING_WORDS = 8
SPLIT_KEY_WORDS = 8
HOLDOUT_PERCENT = 15
VALIDATION_PERCENT = 3


class Split(StrEnum):
    TRAIN = "train"
    VALIDATION = "validation"
    HOLDOUT = "holdout"


@dataclass(frozen=True)
class Source:
    path: str
    """Relative to the library's root, forward slashes."""
    text: str

    @property
    def module(self) -> str:
        """Top-level module or package."""
        return PurePosixPath(self.path).parts[0].removesuffix(".py")

    @property
    def is_held_out(self) -> bool:
        """Whether no training of any kind may see this file. Decided by its path alone."""
        return _bucket(self.path, FILES_PER_HELD_OUT_FILE) == 0


@dataclass(frozen=True)
class Docstring:
    module: str
    name: str
    """Name of the function or class that is documented."""
    text: str
    """Words separated by single spaces."""
    first_line: int
    last_line: int
    """Last line of the docstring in its source; like the first, 1-based, inclusive."""

    @property
    def split(self) -> Split:
        """Docstrings that begin alike share a split, so that none is learnt from a near copy."""
        bucket = _bucket(" ".join(self.text.lower().split()[:SPLIT_KEY_WORDS]), 100)
        if bucket < HOLDOUT_PERCENT:
            return Split.HOLDOUT
        return Split.VALIDATION if bucket < HOLDOUT_PERCENT + VALIDATION_PERCENT else Split.TRAIN


def library_root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def read_sources(root: Path) -> tuple[Source, ...]:
    """Every source file below `root` that is worth reading, sorted by path."""
    paths = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    sources = tuple(Source(path.as_posix(), _read(root / path)) for path in paths if is_wanted(path))
    if not sources:
        raise ValueError(f"no Python sources below {root}; expected the sources of the standard library")
    return sources


@cache
def docstrings_of(source: Source) -> tuple[Docstring, ...]:
    """Docstrings of functions and classes that have enough words to be recognised by."""
    docstrings = []
    for node in ast.walk(ast.parse(source.text, filename=source.path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        words = (ast.get_docstring(node) or "").split()
        if len(words) >= MIN_DOCSTRING_WORDS:
            statement = node.body[0]
            last_line = statement.end_lineno or statement.lineno
            docstrings.append(
                Docstring(source.module, node.name, " ".join(words), statement.lineno, last_line)
            )
    return tuple(docstrings)


def training_text(source: Source) -> str:
    """The source without the docstrings of the validation and holdout splits."""
    kept_back = [doc for doc in docstrings_of(source) if doc.split is not Split.TRAIN]
    hidden = {line for doc in kept_back for line in range(doc.first_line, doc.last_line + 1)}
    # Not splitlines: a form feed ends no line for the parser that counted them.
    lines = source.text.split("\n")
    return "\n".join(line for number, line in enumerate(lines, start=1) if number not in hidden)


def distinct_docstrings(sources: Iterable[Source]) -> list[Docstring]:
    """Docstrings of all sources; of several that begin alike, the first."""
    by_beginning: dict[str, Docstring] = {}
    for source in sources:
        for doc in docstrings_of(source):
            by_beginning.setdefault(" ".join(doc.text.lower().split()[:SPLIT_KEY_WORDS]), doc)
    return list(by_beginning.values())


def seeded(seed: int) -> random.Random:
    """Chance that is the same in every run."""
    return random.Random(seed)  # noqa: S311 nothing here is a secret


def is_wanted(path: Path) -> bool:
    """`path` is relative to the library's root."""
    return not SKIPPED_FOLDERS & set(path.parts) and not path.name.startswith(SKIPPED_PREFIXES)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _bucket(text: str, buckets: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % buckets
