"""Names are made of words that a reader knows: plain English, the field's terms, or an entry of docs/glossary.md.

A word that the field does not have belongs into the glossary; any other one into `plain_words.txt`.
"""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import BaseModel

import schemas
from tests.architecture.source import PACKAGES, ROOT

GLOSSARY = ROOT / "docs/glossary.md"
PLAIN_WORDS = Path(__file__).with_name("plain_words.txt")
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
SOURCES = (*PACKAGES, "docs")
INNER_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def words_of(name: str) -> set[str]:
    return {word.lower() for word in WORD.findall(name)}


def forms_of(word: str) -> Iterator[str]:
    """The word and what it may be the plural, the past or the `-ing` form of."""
    yield word
    for suffix, replacements in (
        ("s", ("",)),
        ("es", ("",)),
        ("ies", ("y",)),
        ("d", ("",)),
        ("ed", ("",)),
        ("ied", ("y",)),
        ("ing", ("", "e")),
    ):
        if word.endswith(suffix):
            stem = word.removesuffix(suffix)
            yield from (stem + replacement for replacement in replacements)
            if suffix in {"ed", "ing"} and stem[-1:] == stem[-2:-1]:
                yield stem[:-1]


@cache
def entries() -> tuple[str, ...]:
    """The left column of the glossary."""
    rows = [line.split("|")[1].strip() for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    return tuple(rows[1:])


@cache
def glossary_words() -> frozenset[str]:
    return frozenset(word for entry in entries() for word in re.findall(r"[a-z]+", entry.lower()))


@cache
def plain_words() -> frozenset[str]:
    lines = PLAIN_WORDS.read_text().splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


def is_known(word: str) -> bool:
    return any(form in plain_words() or form in glossary_words() for form in forms_of(word))


@cache
def public_names() -> dict[str, str]:
    """Each name with where it stands: modules and classes of `shared`, models of `schemas` and their fields."""
    names = {}
    for path in sorted((ROOT / "shared").rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        classes = [
            node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
        ]
        names |= dict.fromkeys([path.stem, *classes], where)
    for module in pkgutil.iter_modules(schemas.__path__, "schemas."):
        for model in vars(importlib.import_module(module.name)).values():
            if isinstance(model, type) and issubclass(model, BaseModel):
                names |= dict.fromkeys(
                    [model.__name__, *model.model_fields], f"{module.name}.{model.__name__}"
                )
    return names


def test_public_names_are_made_of_known_words():
    unknown = {
        f"{word} (in {name} of {where})"
        for name, where in public_names().items()
        for word in words_of(name)
        if not is_known(word)
    }
    assert not unknown, f"explain the word in {GLOSSARY.name}, or use a plain one: {sorted(unknown)}"


def test_the_list_of_plain_words_has_no_more_than_is_used():
    used = {form for name in public_names() for word in words_of(name) for form in forms_of(word)}
    assert plain_words() - used == set(), "take them off the list"


def test_a_plain_word_is_listed_once():
    lines = [line for line in PLAIN_WORDS.read_text().splitlines() if not line.startswith("#")]
    words = [word for line in lines for word in line.split()]
    assert sorted({word for word in words if words.count(word) > 1}) == []
    assert sorted(plain_words() & {entry.lower() for entry in entries()}) == []


def as_words(text: str) -> str:
    """Names taken apart: `WorkOrder` and `work_order` are work order."""
    return INNER_CAPITAL.sub(" ", text).replace("_", " ").lower()


@cache
def texts() -> str:
    paths = [
        path
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md"} and path != GLOSSARY
    ]
    return as_words("\n".join(path.read_text() for path in paths))


def test_an_entry_of_the_glossary_is_in_use():
    heads = [
        as_words(head).strip() for entry in entries() for head in re.sub(r"\(.*?\)|`", "", entry).split(",")
    ]
    assert [head for head in heads if head not in texts()] == []


def test_the_glossary_is_in_alphabetical_order():
    heads = [entry.lower().replace("`", "") for entry in entries()]
    assert heads == sorted(heads)
