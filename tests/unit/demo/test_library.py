from pathlib import Path

import pytest

from deploy.demo.library import (
    Source,
    Split,
    distinct_docstrings,
    docstrings_of,
    is_wanted,
    training_text,
)
from tests.unit.demo.builders import a_docstring, docstrings_in

LONG = "Return the value that was stored under this very key before."

SOURCE = f'''\
"""The documentation of a whole module is about too many things to be asked for."""


class Store:
    """Keeps things that other people would rather have thrown away long ago."""

    def get(self, key):
        """{LONG}

        The second paragraph.
        """
        return self._values[key]

    def put(self, key):
        """Too short."""
'''


class TestDocstringsOf:
    def test_finds_classes_and_functions_with_enough_words(self):
        docstrings = docstrings_of(Source("shelf/__init__.py", SOURCE))
        assert [doc.name for doc in docstrings] == ["Store", "get"]

    def test_words_are_separated_by_single_spaces(self):
        docstrings = docstrings_of(Source("shelf.py", SOURCE))
        assert docstrings[1].text == f"{LONG} The second paragraph."

    def test_says_where_the_docstring_stands(self):
        docstring = docstrings_of(Source("shelf.py", SOURCE))[1]
        lines = SOURCE.split("\n")[docstring.first_line - 1 : docstring.last_line]
        assert lines[0].strip() == f'"""{LONG}'
        assert lines[-1].strip() == '"""'

    @pytest.mark.parametrize("path", ["email/message.py", "email/mime/text.py", "email.py"])
    def test_module_is_the_top_level_one(self, path):
        assert Source(path, "").module == "email"


class TestSplit:
    def test_docstrings_that_begin_alike_share_a_split(self):
        start = "Return the number of items that are in this "
        splits = {a_docstring(start + end).split for end in ("queue", "list of lists", "other bag", "QUEUE")}
        assert len(splits) == 1

    def test_most_docstrings_are_for_training_and_each_split_has_some(self):
        docs = [a_docstring(f"Number {number} of a thousand things that are told") for number in range(1000)]
        counts = {split: sum(doc.split is split for doc in docs) for split in Split}
        assert counts[Split.TRAIN] > 800
        assert counts[Split.HOLDOUT] > counts[Split.VALIDATION] > 0


class TestTrainingText:
    def test_has_no_docstring_of_holdout_or_validation(self):
        kept_back = docstrings_in(Split.HOLDOUT, 1)[0].text
        validated = docstrings_in(Split.VALIDATION, 1)[0].text
        trained = docstrings_in(Split.TRAIN, 1)[0].text
        text = training_text(Source("a.py", _functions(kept_back, trained, validated)))
        assert trained in text
        assert kept_back not in text
        assert validated not in text
        assert text.count("def ") == 3

    def test_a_form_feed_moves_no_line(self):
        kept_back = docstrings_in(Split.HOLDOUT, 1)[0].text
        text = training_text(Source("a.py", "x = 1\n\x0c\n" + _functions(kept_back)))
        assert kept_back not in text
        assert "return 0" in text


def test_of_docstrings_that_begin_alike_only_the_first_is_kept():
    same = "Return the number of items that are in this queue."
    sources = [Source("a.py", _functions(same)), Source("b.py", _functions(same.upper()))]
    assert [(doc.module, doc.text) for doc in distinct_docstrings(sources)] == [("a", same)]


def test_a_twelfth_of_all_files_is_held_out_by_path_alone():
    held_out = [number for number in range(1200) if Source(f"lib/{number}.py", "").is_held_out]
    assert 60 < len(held_out) < 140
    assert all(Source(f"lib/{number}.py", "other text").is_held_out for number in held_out)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("json/decoder.py", True),
        ("unittest/mock.py", True),
        ("test/test_json.py", False),
        ("idlelib/idle_test/test_run.py", False),
        ("site-packages/pip/__init__.py", False),
        ("_sysconfigdata__linux_.py", False),
    ],
)
def test_tests_and_foreign_packages_are_skipped(path, expected):
    assert is_wanted(Path(path)) is expected


def _functions(*docstrings: str) -> str:
    return "\n".join(
        f'def function_{number}():\n    """{text}"""\n    return {number}'
        for number, text in enumerate(docstrings)
    )
