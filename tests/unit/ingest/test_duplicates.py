"""Exact and near duplicates: the earliest row stays, candidates are verified, and nothing else is dropped."""

import random
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ingest.pipeline import duplicates
from services.ingest.pipeline.boilerplate import Common
from services.ingest.pipeline.duplicates import (
    DuplicateIndex,
    Fingerprint,
    Kept,
    Match,
    PromptSpool,
    band_keys,
    bands_for,
    fingerprint_of,
)
from services.ingest.pipeline.formats import Turn
from services.ingest.pipeline.text import NO_KEYS, Keys, fold, jaccard, row_text, shingle_hashes
from tests.unit.ingest.builders import an_example, assistant, chat, system, user
from tests.unit.ingest.screening import screen
from tests.unit.ingest.templated import Writer


class Rows:
    """An index, fed with prompts that are all answered alike; the line of each is its place."""

    def __init__(self, directory: Path, *, similarity: float = 0.9) -> None:
        self.spool = PromptSpool(directory / "prompts")
        self.similarity = similarity
        repeated = np.array([row_text(an_example("any", "answer").turns).key], np.uint64)
        self.common = Common(NO_KEYS, repeated)
        self.index = DuplicateIndex(self.spool, self.common, similarity=similarity)
        self.lines = 0

    def add(self, prompt: str) -> Match | None:
        """The row that this one repeats, or None after keeping it."""
        self.lines += 1
        row = row_text(an_example(prompt, "answer").turns)
        own = fingerprint_of(row, self.common, similarity=self.similarity)
        match = self.index.find(row.digest, own)
        if match is None:
            self.index.add(Kept("training", self.lines), row.digest, own)
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
    letters = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz     ") for _ in range(length - 2))
    return f"a{letters}z"


def edited(text: str, rng: random.Random, *, similarity: float) -> str:
    """`text` with its end replaced, as little below `similarity` as one more character makes it."""
    end = len(text) - 2
    while True:
        changed = text[:end] + a_text(rng, len(text) - end)
        if true_jaccard(text, changed) < similarity:
            return changed
        end -= 1


class TestExactDuplicates:
    def test_text_is_folded_at_the_ends_of_lines_alone(self) -> None:
        assert fold(unicodedata.normalize("NFD", "  Ré \t\r\n\n\tsumé  x \n ")) == "  Ré\n\n\tsumé  x"

    @pytest.mark.parametrize(
        "other", ["def f():\n  return 1", "def f():\n\n    return 1", "def f(): return 1"]
    )
    def test_rows_that_differ_in_indentation_or_line_breaks_alone_are_both_kept(self, other: str) -> None:
        result = screen([chat(user(), assistant(text)) for text in ("def f():\n    return 1", other)])
        assert result.kept == {1, 2}

    @pytest.mark.parametrize("other", ["def f():\r\n    return 1", "def f():  \n    return 1\n\n"])
    def test_rows_equal_but_for_trailing_white_space_and_line_ends_are_one(self, other: str) -> None:
        rows = [chat(user(), assistant(text)) for text in ("def f():\n    return 1", other)]
        assert screen(rows, max_dropped_ratio=1).kept == {1}

    @pytest.mark.parametrize(
        "other", [an_example("a", "c"), an_example("a", "B"), an_example("a", "b", "c"), an_example("a b")]
    )
    def test_rows_that_differ_in_text_case_or_turns_are_not_equal(self, other: object) -> None:
        assert row_text(an_example("a", "b").turns).digest != row_text(other.turns).digest

    def test_a_turn_that_is_not_trained_on_makes_another_row(self) -> None:
        asked, answered = an_example("a", "b").turns
        assert (
            row_text((asked, answered)).digest
            != row_text((asked, replace(answered, is_trained=False))).digest
        )

    def test_the_earliest_of_three_equal_rows_is_the_one_named(self, rows: Rows) -> None:
        assert rows.add("the same text") is None
        for _ in range(2):
            assert rows.add("the same text") == Match(Kept("training", 1), 1.0, is_exact=True)


class TestNearDuplicates:
    def test_the_row_and_the_true_similarity_are_named(self, rows: Rows) -> None:
        text = a_text(random.Random(1))
        near = text[:-10] + "0123456789"
        rows.add("something else entirely, long enough to count")
        rows.add(text)
        match = rows.add(near)
        assert match is not None
        assert (match.kept, match.is_exact) == (Kept("training", 2), False)
        assert match.similarity == pytest.approx(true_jaccard(text, near))

    def test_of_two_rows_that_it_repeats_nearly_the_earlier_one_is_named(self, rows: Rows) -> None:
        text = a_text(random.Random(3))
        other_end, other_beginning = text[:-14] + "01234567890123", "ABCDEFGHIJKLMN" + text[14:]
        assert rows.add(other_end) is None
        assert rows.add(other_beginning) is None
        match = rows.add(text)
        assert match is not None
        assert match.kept == Kept("training", 1)
        assert match.similarity == pytest.approx(true_jaccard(text, other_end))
        assert true_jaccard(text, other_beginning) >= 0.9, "the later row is no near duplicate either"

    def test_the_limit_itself_is_one_and_just_below_is_not(self, tmp_path: Path) -> None:
        rng = random.Random(2)
        for number in range(100):
            text = a_text(rng)
            below = edited(text, rng, similarity=0.9)
            for similarity, is_found in ((true_jaccard(text, below), True), (0.9, False)):
                rows = Rows(tmp_path, similarity=similarity)
                with closing(rows.spool):
                    assert rows.add(text) is None
                    assert (rows.add(below) is not None) is is_found, (number, similarity)

    def test_a_row_like_a_dropped_row_but_not_like_a_kept_one_is_kept(self, rows: Rows) -> None:
        text = a_text(random.Random(3))
        near, further = text[:-10] + "0123456789", text[:-30] + "0123456789" * 3
        assert true_jaccard(near, further) > true_jaccard(text, further)
        assert rows.add(text) is None
        assert rows.add(near) is not None
        assert rows.add(further) is None

    def test_random_texts_of_one_alphabet_are_all_kept(self, rows: Rows) -> None:
        rng = random.Random(4)
        assert [rows.add(a_text(rng)) for _ in range(300)] == [None] * 300

    @pytest.mark.parametrize("text", ["a", "ab", "abcd", "abcde", "你好", "🎉" * 9])
    def test_short_prompts_are_compared_as_a_whole(self, rows: Rows, text: str) -> None:
        assert rows.add(text) is None
        assert rows.add(text + "x") is None
        match = rows.add(text)
        assert match is not None
        assert match.kept.line == 1

    def test_a_row_with_too_many_candidates_is_kept_and_counted(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(duplicates, "MAX_VERIFIED", 1)
        rng = random.Random(5)
        text = a_text(rng)
        # All alike enough to be candidates, none alike enough to be near duplicates of one another.
        assert [rows.add(text[:-30] + a_text(rng, 30)) for _ in range(9)] == [None] * 9
        assert rows.index.rows_not_fully_compared > 0

    def test_one_document_under_two_questions_of_equal_answers_is_one_row(self) -> None:
        document = Writer(1).text(200)
        rows = [chat(user(f"{document}\nIs it {word}?"), assistant("yes")) for word in ("good", "fine")]
        others = [chat(user(Writer(number).text(50)), assistant("yes")) for number in range(2, 20)]
        assert screen([*rows, *others]).kept == set(range(1, 21)) - {2}

    @pytest.mark.parametrize(
        "second",
        [
            chat(user("document"), assistant("no")),
            chat(user("document"), assistant("Yes")),
            chat(system("Answer."), user("document"), assistant("yes")),
            chat(user("document"), assistant("yes", weight=0), user("And?"), assistant("yes")),
        ],
    )
    def test_rows_of_other_answers_or_another_system_turn_are_both_kept(
        self, second: dict[str, object]
    ) -> None:
        document = Writer(1).text(200)
        for message in second["messages"]:  # type: ignore[attr-defined]
            message["content"] = message["content"].replace("document", f"{document}!")
        others = [chat(user(Writer(number).text(50)), assistant("yes")) for number in range(2, 20)]
        assert screen([chat(user(document), assistant("yes")), second, *others]).dropped == 0

    def test_the_answers_are_not_part_of_the_similarity(self) -> None:
        turns = (Turn("user", "question", "f"), Turn("assistant", "answer " * 90, "f"))
        assert row_text(turns).prompt == "question"

    def test_a_template_in_the_prompt_is_not_part_of_the_similarity(self) -> None:
        template = Writer(1).text(300)
        rows = [
            chat(user(f"{template}\n{Writer(number).text(12)}"), assistant("A")) for number in range(2, 80)
        ]
        assert screen(rows).dropped == 0


def prompts_in_bands(rows: Rows, *bands: int) -> list[str]:
    """Prompts of one length that are not alike; each is kept, found by its band alone."""
    rng = random.Random(6)
    prompts = [a_text(rng) for _ in bands]
    for line, (prompt, band) in enumerate(zip(prompts, bands, strict=True), start=1):
        rows.index.add(Kept("training", line), bytes([line]), Fingerprint(7, prompt, 100, (band,)))
    return prompts


class TestCandidates:
    def test_the_earliest_are_compared_and_a_row_with_more_is_counted(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(duplicates, "MAX_VERIFIED", 2)
        one, two, three, _ = prompts_in_bands(rows, 1, 1, 1, 1)
        matches = [rows.index.find(b"new", Fingerprint(7, prompt, 100, (1,))) for prompt in (one, two, three)]
        assert [match and match.kept.line for match in matches] == [1, 2, None]
        assert rows.index.rows_not_fully_compared == 1
        rows.index.find(b"new", Fingerprint(7, three, 100, (1,)))
        assert rows.index.rows_not_fully_compared == 2

    def test_as_many_as_the_limit_are_all_compared(self, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(duplicates, "MAX_VERIFIED", 2)
        prompts_in_bands(rows, 1, 1)
        assert rows.index.find(b"new", Fingerprint(7, "unlike them", 100, (1,))) is None
        assert rows.index.rows_not_fully_compared == 0

    @pytest.mark.parametrize(
        ("key", "num_shingles", "is_one"),
        [(7, 100, True), (8, 100, False), (7, 90, True), (7, 89, False), (7, 111, True), (7, 112, False)],
    )
    def test_have_equal_answers_and_about_as_many_shingles(
        self, rows: Rows, key: int, num_shingles: int, is_one: bool
    ) -> None:
        (prompt,) = prompts_in_bands(rows, 1)
        match = rows.index.find(b"new", Fingerprint(key, prompt, num_shingles, (1,)))
        assert (match is not None) is is_one

    def test_those_read_last_stay_in_memory_within_its_limit(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two, three = prompts_in_bands(rows, 1, 2, 3)
        size = len(shingle_hashes(one))
        assert size == len(shingle_hashes(two)) == len(shingle_hashes(three))
        monkeypatch.setattr(duplicates, "CACHED_KEYS", 2 * size)
        for prompt, band in ((one, 1), (two, 2), (one, 1), (three, 3)):
            match = rows.index.find(b"new", Fingerprint(7, prompt, 100, (band,)))
            assert match is not None
            assert match.kept.line == band
        assert [*rows.index._cache] == [0, 2], "the second was read longest ago"
        assert rows.index._cached == 2 * size

    def test_the_one_read_last_stays_in_memory_however_long_it_is(
        self, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(duplicates, "CACHED_KEYS", 1)
        for band, prompt in enumerate(prompts_in_bands(rows, 1, 2), start=1):
            rows.index.find(b"new", Fingerprint(7, prompt, 100, (band,)))
            assert [*rows.index._cache] == [band - 1]


@given(st.text(min_size=5, max_size=60), st.text(min_size=5, max_size=60))
def test_the_similarity_is_that_of_the_sets_of_character_5_grams(left: str, right: str) -> None:
    assert jaccard(shingle_hashes(left), shingle_hashes(right)) == pytest.approx(true_jaccard(left, right))


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [
        (0.6, (32, 2)),
        (0.7, (21, 3)),
        (0.8, (16, 4)),
        (0.9, (10, 6)),
        (0.95, (7, 9)),
        (0.99, (4, 16)),
        (1.0, (2, 32)),
    ],
)
def test_bands_are_the_widest_that_find_999_of_1000_pairs_at_the_limit(
    similarity: float, expected: tuple[int, int]
) -> None:
    bands, width = bands_for(similarity)
    assert (bands, width) == expected
    assert bands * width <= duplicates.NUM_PERMUTATIONS
    assert 1 - (1 - similarity**width) ** bands >= duplicates.MIN_RECALL


def test_bands_of_the_lowest_similarity_are_as_many_as_there_can_be() -> None:
    assert bands_for(0.5) == (32, 2)


def test_bands_are_those_of_the_whole_set_and_unlike_sets_share_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def bands_of(shingles: Keys, key: int = 7) -> tuple[int, ...]:
        return band_keys(shingles, key, similarity=0.9)

    rng = random.Random(7)
    shingles, others = (shingle_hashes(a_text(rng)) for _ in range(2))
    whole = bands_of(shingles)
    assert len({*whole}) == 10
    assert {type(band) for band in whole} == {int}, "floats would be equal where 53 bits of 64 are"
    for unlike in (bands_of(others), bands_of(shingles, key=8)):
        assert not {*whole} & {*unlike}
    few = shingles[:12]
    assert bands_of(few) == bands_of(few[::-1])
    monkeypatch.setattr(duplicates, "HASHED_AT_ONCE", 10)
    assert bands_of(shingles) == whole
