"""Imports of a process that computes: what counts as not installed, and what is so again afterwards."""

import gc
import importlib
import importlib.util
import sys

import pytest

from shared.processes import loading
from shared.processes.loading import quick_imports


@pytest.fixture
def unused(monkeypatch) -> str:
    monkeypatch.setattr(loading, "UNUSED_BY_TEXT_MODELS", ("wave",))
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    return "wave"


def test_an_unused_package_counts_as_not_installed_until_the_end(unused):
    with quick_imports():
        assert importlib.util.find_spec(unused) is None
        with pytest.raises(ImportError):
            importlib.import_module(unused)
    assert importlib.import_module(unused).__name__ == unused


def test_a_package_that_is_in_use_stays(unused):
    module = importlib.import_module(unused)
    with quick_imports():
        assert importlib.import_module(unused) is module
    assert sys.modules[unused] is module


def test_garbage_is_collected_again_after_an_error(unused):
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        imports_that_fail()
    assert gc.isenabled()
    assert unused not in sys.modules


def imports_that_fail() -> None:
    with quick_imports():
        assert not gc.isenabled()
        raise ZeroDivisionError
