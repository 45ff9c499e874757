"""13-gram overlap: lower-cased words between white space; a shorter text counts as a whole."""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.specification import DatasetPolicy
from services.ingest.pipeline.contamination import hit_shares, make_source, strings_of, texts_of_rows
from services.ingest.pipeline.duplicates import Kept, Match
from services.ingest.pipeline.lines import LineReader
from services.ingest.pipeline.rules import FileRefused
from services.ingest.pipeline.screen import stays
from services.ingest.pipeline.tally import FileTally
from services.ingest.pipeline.text import gram_hashes, words
from tests.unit.ingest.builders import assistant, chat, examine, user

WORDS = [f"w{number}" for number in range(200)]
OTHER = [f"x{number}" for number in range(200)]


def share(row: list[str], *texts: list[str]) -> float:
    source = make_source("benchmark", (" ".join(text) for text in texts))
    ((found,),) = hit_shares([gram_hashes(words(" ".join(row)))], (source,))
    return found


def test_a_row_of_which_half_the_grams_are_known_has_share_one_half() -> None:
    # 25 words in common give 13 grams of 13 words; one more of the row's 26 grams makes the difference.
    assert share([*WORDS[:25], *OTHER[:13]], WORDS) == pytest.approx(13 / 26)
    assert share([*WORDS[:26], *OTHER[:12]], WORDS) == pytest.approx(14 / 26)


def test_twelve_words_in_a_row_are_no_overlap_and_thirteen_are() -> None:
    assert share([*WORDS[:12], *OTHER[:30]], WORDS) == 0
    assert share([*WORDS[:13], *OTHER[:30]], WORDS) == pytest.approx(1 / 31)


def test_case_and_white_space_do_not_hide_an_overlap() -> None:
    row = gram_hashes(words("  ".join(word.upper() for word in WORDS[:20])))
    assert hit_shares([row], (make_source("benchmark", [" ".join(WORDS)]),)) == [(1.0,)]


@pytest.mark.parametrize(("row", "expected"), [(WORDS[:5], 1.0), (WORDS[:4], 0.0), (WORDS[:6], 0.0)])
def test_a_row_of_fewer_than_13_words_is_hit_only_as_a_whole(row: list[str], expected: float) -> None:
    assert share(row, WORDS[:5]) == expected


def test_each_source_has_its_own_share() -> None:
    sources = (
        make_source("a", [" ".join(WORDS)]),
        make_source("none", []),
        make_source("b", [" ".join(OTHER)]),
    )
    rows = [gram_hashes(words(" ".join(row))) for row in (WORDS[:13], OTHER[:14], [*WORDS[:13], *OTHER[:13]])]
    assert hit_shares(rows, sources) == [(1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (1 / 14, 0.0, 1 / 14)]


@given(
    st.lists(st.integers(0, 3).map(str), min_size=1, max_size=40),
    st.lists(st.integers(0, 3).map(str), max_size=60),
)
def test_the_share_is_that_of_the_grams_as_tuples(row: list[str], text: list[str]) -> None:
    def grams(of: list[str]) -> list[tuple[str, ...]]:
        return [tuple(of[at : at + 13]) for at in range(max(len(of) - 12, 1))]

    known = set(grams(text)) if text else set()
    assert share(row, text) == pytest.approx(np.mean([gram in known for gram in grams(row)]))


def test_a_registered_row_counts_as_a_whole_and_by_each_of_its_strings() -> None:
    row = {"id": 7, "question": "Why?", "choices": {"text": ["a", "b"]}, "messages": [user("hi")], "n": None}
    assert list(strings_of(row)) == ["Why?", "a", "b", "hi"]
    stream = io.BytesIO(json.dumps(row).encode())
    reader = LineReader(stream, name="arc", max_row_bytes=1000, max_rows=10)
    assert list(texts_of_rows("arc", reader)) == ["Why? a b hi", "Why?", "a", "b", "hi"]


def test_a_registered_file_that_cannot_be_read_refuses_the_dataset() -> None:
    reader = LineReader(io.BytesIO(b"{}\n{"), name="arc", max_row_bytes=1000, max_rows=10)
    with pytest.raises(FileRefused, match="registered file arc, line 2"):
        list(texts_of_rows("arc", reader))


def test_an_examined_row_has_a_share_per_source() -> None:
    question = " ".join(WORDS[:30])
    (row,) = examine(
        chat(user(question), assistant("because " * 5)), sources=(make_source("benchmark", [question]),)
    )
    assert row.shares == (pytest.approx(18 / 23),)


@pytest.mark.parametrize(("found", "is_contaminated"), [(0.5, False), (0.51, True)])
def test_a_row_is_contaminated_above_the_share_and_every_overlap_is_stored(
    found: float, is_contaminated: bool
) -> None:
    (row,) = examine(chat())
    row = replace(row, shares=(0.0, found))
    tally = FileTally("training", "0" * 64)
    assert tally.add_overlaps(row, ("a", "b"), above=0.5) is is_contaminated
    (overlap,) = tally.overlaps
    assert (overlap.line, overlap.source, overlap.share) == (1, "b", found)
    assert overlap.is_contaminated is is_contaminated


def policy(**changes: Any) -> DatasetPolicy:
    return DatasetPolicy(**changes)


EXACT = Match(Kept("training", 1), 1.0, is_exact=True)
NEAR = Match(Kept("training", 1), 0.95, is_exact=False)
OF_HOLDOUT = Match(Kept("holdout", 1), 1.0, is_exact=True)


@pytest.mark.parametrize(
    ("match", "is_contaminated", "changes", "expected"),
    [
        (None, False, {}, True),
        (None, True, {}, False),
        (None, True, {"contamination": "reject_file"}, False),
        (None, True, {"contamination": "keep"}, True),
        (EXACT, False, {}, False),
        (EXACT, False, {"exact_duplicates": "keep"}, True),
        (EXACT, False, {"near_duplicates": "keep"}, False),
        (NEAR, False, {}, False),
        (NEAR, False, {"near_duplicates": "keep"}, True),
        (OF_HOLDOUT, True, {"exact_duplicates": "keep"}, False),
        (OF_HOLDOUT, True, {"contamination": "keep"}, True),
        (EXACT, True, {"contamination": "keep"}, False),
    ],
)
def test_what_stays_follows_from_the_policy(
    match: Match | None, is_contaminated: bool, changes: dict[str, Any], expected: bool
) -> None:
    assert stays(match, "training", policy(**changes), is_contaminated=is_contaminated) is expected


def test_the_holdout_is_never_changed() -> None:
    assert stays(OF_HOLDOUT, "holdout", policy(), is_contaminated=True)
