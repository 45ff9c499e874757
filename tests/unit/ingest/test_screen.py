"""The rows of one file pass through the filters: what is kept, what is counted, what is reported on the way."""

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from schemas.dataset import FileRole
from schemas.specification import DatasetPolicy
from services.ingest.pipeline import screen as module
from services.ingest.pipeline.boilerplate import Common
from services.ingest.pipeline.counts import FileCounts
from services.ingest.pipeline.duplicates import DuplicateIndex, PromptSpool
from services.ingest.pipeline.examine import Examiner
from services.ingest.pipeline.order import Progress
from services.ingest.pipeline.rules import FileRefused
from services.ingest.pipeline.screen import RowFilter
from services.ingest.pipeline.text import NO_KEYS, row_text
from tests.unit.ingest.builders import CHAT, an_example, assistant, chat, user
from tests.unit.ingest.screening import screen
from tests.unit.ingest.templated import Writer

ONE, TWO = (chat(user(text), assistant()) for text in ("one", "two"))
BAD = chat(user("no answer"))
ALIKE = [chat(user(f"{Writer(1).text(200)} {end}"), assistant()) for end in "ab"]
COMMON = Common(NO_KEYS, np.array([row_text(an_example("", assistant()["content"]).turns).key], np.uint64))
"""Rows that are answered like these may be near duplicates."""


class Passing:
    """A filter with the progress that it reports."""

    def __init__(self, directory: Path, spool: PromptSpool) -> None:
        self.sent: list[Progress] = []
        self.index = DuplicateIndex(spool, COMMON, similarity=0.9)
        self._path = directory / "rows"

    def lines(self, *rows: Any, role: FileRole = "training", **policy: Any) -> tuple[list[int], FileCounts]:
        """Lines of the rows that are kept, and the counts."""
        self._path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        counts, asked = FileCounts(role, "0" * 64, format=CHAT), DatasetPolicy(**policy)
        passing = RowFilter(self.index, asked, 1, self.sent.append)
        examiner = Examiner(role, CHAT, asked, COMMON)
        return [row.line for row in passing.kept_rows(self._path, examiner, counts)], counts


@pytest.fixture
def passing(tmp_path: Path) -> Iterator[Passing]:
    with closing(PromptSpool(tmp_path / "prompts")) as spool:
        yield Passing(tmp_path, spool)


def test_bad_rows_and_repeated_ones_are_counted_and_the_rest_is_kept(passing: Passing) -> None:
    lines, counts = passing.lines(ONE, BAD, ONE, TWO)
    assert lines == [1, 4]
    assert (counts.rows, counts.kept, counts.rejected, counts.exact) == (4, 2, 1, 1)
    assert [problem.line for problem in counts.problems] == [2]


def test_progress_is_reported_after_so_many_rows_and_at_the_end(
    passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(10, 1.0625)
    monkeypatch.setattr(module, "PROGRESS_ROWS", 2)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    passing.lines(ONE, BAD, TWO)
    assert passing.sent == [
        Progress(part="training", rows=2, kept=1, seconds=1.062),
        Progress(part="training", rows=3, kept=2, seconds=2.125),
    ]


def test_a_refusal_names_the_file(passing: Passing) -> None:
    with pytest.raises(FileRefused, match="the validation file has more than 1 rows"):
        passing.lines(ONE, TWO, role="validation", max_rows=1)


def test_rows_of_the_files_before_that_were_not_fully_compared_are_not_counted_again(
    passing: Passing,
) -> None:
    passing.index.rows_not_fully_compared = 3
    assert passing.lines(ONE)[1].not_fully_compared == 0


def test_the_holdout_keeps_its_repeated_rows_which_give_nothing_away(passing: Passing) -> None:
    lines, counts = passing.lines(ONE, ONE, role="holdout")
    assert lines == [1, 2]
    assert (counts.kept, counts.exact, counts.contaminated) == (2, 1, 0)


@pytest.mark.parametrize(("role", "kept"), [("training", [1]), ("safety_mix", [1, 2])])
def test_a_safety_mix_alone_may_say_one_thing_in_several_ways(
    passing: Passing, role: FileRole, kept: list[int]
) -> None:
    lines, counts = passing.lines(*ALIKE, role=role)
    assert (lines, counts.near) == (kept, 1)


def test_a_kept_row_that_is_nearly_like_another_may_be_repeated_itself() -> None:
    others = [chat(user(Writer(number).text(50)), assistant()) for number in range(2, 20)]
    first, near = ALIKE
    result = screen([first, near, near, *others], near_duplicates="keep")
    assert result.kept == set(range(1, 22)) - {3}
    assert (result.counts.near, result.counts.exact) == (1, 1)
