"""The stores in memory answer all that production's handlers ask of theirs, under the same signatures."""

import ast
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.simulation.wiring import STORES

STORE_NAMES = ("store", "queue_store")


def name_of(store: ModuleType) -> str:
    return store.__name__.rpartition(".")[2]


@pytest.mark.parametrize("store", STORES, ids=name_of)
def test_every_question_of_the_handlers_has_an_answer(store):
    real = questions_of(name_of(store))
    asked = asked_by_handlers(name_of(store))
    assert asked, "handlers ask their store"
    for name in sorted(asked):
        answer = getattr(store, name, None)
        assert answer is not None, f"tests/simulation/stores/{name_of(store)}.py has no {name}"
        assert _parameters(answer) == _parameters(real[name]), name


@pytest.mark.parametrize("store", STORES, ids=name_of)
def test_what_the_statements_lock_is_locked_in_memory_too(store):
    real = questions_of(name_of(store))
    asked = asked_by_handlers(name_of(store))
    locking = {name for name in asked if _locks(real[name], r"FOR (UPDATE|SHARE)|lock_name\(")}
    assert {name for name in asked if _locks(getattr(store, name), r"conn\.lock_")} == locking


def _locks(function: Any, pattern: str) -> bool:
    """Whether it says so itself, in its SQL or in what it calls of its module."""
    sources = [inspect.getsource(function)]
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    sources += [each for each in named if isinstance(each, str)]
    if any(re.search(pattern, each) for each in sources):
        return True
    called = [each for each in named if inspect.isfunction(each) and each.__module__ == function.__module__]
    return any(each is not function and _locks(each, pattern) for each in called)


def asked_by_handlers(service: str) -> set[str]:
    modules = next(modules for store, modules in STORES.items() if name_of(store) == service)
    functions = questions_of(service)
    asked = {name for module in modules for name in _asked_by(module)}
    return {name for name in asked if inspect.iscoroutinefunction(functions[name])}


def questions_of(service: str) -> dict[str, object]:
    names = [f"services.{service}.{name}" for name in STORE_NAMES]
    modules = [importlib.import_module(name) for name in names if importlib.util.find_spec(name)]
    return {name: value for module in modules for name, value in vars(module).items()}


def _asked_by(module: ModuleType) -> set[str]:
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    return {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in STORE_NAMES
    }


def _parameters(function: object) -> list[tuple[str, object]]:
    return [(each.name, each.kind) for each in inspect.signature(function).parameters.values()]  # type: ignore[arg-type]
