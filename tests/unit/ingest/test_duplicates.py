"""Exact and near duplicates: the earliest row stays, candidates are verified, and nothing else is dropped."""

import random
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ingest.pipeline import duplicates
from services.ingest.pipeline.duplicates import DuplicateIndex, Kept, Match, TextSpool, bands_for, signature
from services.ingest.pipeline.formats import Example, Turn
from services.ingest.pipeline.text import conversation_text, jaccard, normalise, row_digest, shingle_hashes
from tests.unit.ingest.builders import an_example


class Rows:
    """An index, fed with texts; the line of each is its place."""

    def __init__(self, directory: Path, *, similarity: float = 0.9) -> None:
        self.spool = TextSpool(directory / "texts")
        self.index = DuplicateIndex(self.spool, similarity=similarity)
        self.lines = 0

    def add(self, text: str, *, file: str = "training") -> Match | None:
        """The row that `text` repeats, or None after keeping it."""
        self.lines += 1
        example = an_example(text)
        row = (row_digest(example.turns), signature(text), text)
        match = self.index.find(*row)
        if match is None:
            self.index.add(Kept(file, self.lines), *row)
        return match


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    rows = Rows(tmp_path)
    yield rows
    rows.spool.close()


def true_jaccard(left: str, right: str) -> float:
    a, b = ({text[at : at + 5] for at in range(len(text) - 4)} for text in (left, right))
    return len(a & b) / len(a | b)


def a_text(rng: random.Random, length: int = 400) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz     ") for _ in range(length))


def edited(text: str, rng: random.Random, *, similarity: float) -> str:
    """`text` with its end replaced, as little below `similarity` as one more character makes it."""
    end = len(text)
    while True:
        changed = text[:end] + a_text(rng, len(text) - end)
        if true_jaccard(text, changed) < similarity:
            return changed
        end -= 1


def test_normalisation_is_nfc_and_single_spaces_and_keeps_case() -> None:
    assert normalise(unicodedata.normalize("NFD", " Ré \t\n sumé ")) == "Ré sumé"


def test_rows_equal_but_for_white_space_and_composition_are_exact_duplicates() -> None:
    left = an_example("What  is é?", "A\nletter")
    right = an_example("What is e\u0301? ", "A letter")
    assert row_digest(left.turns) == row_digest(right.turns)


@pytest.mark.parametrize(
    "other", [an_example("a", "c"), an_example("a", "B"), an_example("a", "b", "c"), an_example("a b")]
)
def test_rows_that_differ_in_text_case_or_turns_are_not_exact_duplicates(other: object) -> None:
    assert row_digest(an_example("a", "b").turns) != row_digest(other.turns)


def test_the_earliest_of_three_equal_rows_is_the_one_named(rows: Rows) -> None:
    assert rows.add("the same text") is None
    for _ in range(2):
        assert rows.add("the same text") == Match(Kept("training", 1), 1.0, is_exact=True)


def test_a_near_duplicate_names_the_row_and_the_true_similarity(rows: Rows) -> None:
    text = a_text(random.Random(1))
    near = text[:-10] + "0123456789"
    rows.add("something else entirely, long enough to count")
    rows.add(text)
    match = rows.add(near)
    assert match is not None
    assert (match.kept, match.is_exact) == (Kept("training", 2), False)
    assert match.similarity == pytest.approx(true_jaccard(text, near))


def test_the_limit_itself_is_a_near_duplicate_and_just_below_is_not(tmp_path: Path) -> None:
    rng = random.Random(2)
    for number in range(100):
        text = a_text(rng)
        below = edited(text, rng, similarity=0.9)
        for similarity, is_found in ((true_jaccard(text, below), True), (0.9, False)):
            with closing(TextSpool(tmp_path / "texts")) as spool:
                index = DuplicateIndex(spool, similarity=similarity)
                index.add(Kept("training", 1), b"1", signature(text), text)
                found = index.find(b"2", signature(below), below)
            assert (found is not None) is is_found, (number, similarity)


def test_a_row_like_a_dropped_row_but_not_like_a_kept_one_is_kept(rows: Rows) -> None:
    text = a_text(random.Random(3))
    near, further = text[:-10] + "0123456789", text[:-30] + "0123456789" * 3
    assert true_jaccard(near, further) > true_jaccard(text, further)
    assert rows.add(text) is None
    assert rows.add(near) is not None
    assert rows.add(further) is None


def test_random_texts_of_one_alphabet_are_all_kept(rows: Rows) -> None:
    rng = random.Random(4)
    assert [rows.add(a_text(rng)) for _ in range(300)] == [None] * 300


@pytest.mark.parametrize("text", ["a", "ab", "abcd", "abcde", "你好", "🎉" * 9])
def test_short_texts_are_compared_as_a_whole(rows: Rows, text: str) -> None:
    assert rows.add(text) is None
    assert rows.add(text + "x") is None
    match = rows.add(text)
    assert match is not None
    assert match.kept.line == 1


def test_a_row_with_too_many_candidates_is_kept_and_counted(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "MAX_VERIFIED", 1)
    rng = random.Random(5)
    text = a_text(rng)
    # All alike enough to be candidates, none alike enough to be near duplicates of one another.
    assert [rows.add(text[:-30] + a_text(rng, 30)) for _ in range(5)] == [None] * 5
    assert rows.index.rows_not_fully_compared > 0


def test_the_system_turn_does_not_make_two_rows_alike() -> None:
    turns = an_example("question", "answer").turns
    shared = Turn("system", "You are a librarian." * 50, "messages[0].content")
    assert conversation_text(Example(1, (shared, *turns))) == "question answer"


@given(st.text(min_size=5, max_size=60), st.text(min_size=5, max_size=60))
def test_the_similarity_is_that_of_the_sets_of_character_5_grams(left: str, right: str) -> None:
    assert jaccard(shingle_hashes(left), shingle_hashes(right)) == pytest.approx(true_jaccard(left, right))


@pytest.mark.parametrize("similarity", [0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_bands_find_999_of_1000_pairs_at_the_limit(similarity: float) -> None:
    bands, width = bands_for(similarity)
    assert bands * width <= 128
    assert 1 - (1 - similarity**width) ** bands >= 0.999
