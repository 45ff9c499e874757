"""Templated sets lose next to nothing, copies among them are found, and what is counted does not depend on how."""

import random

import numpy as np
import pytest

from bench.ingest import reference
from services.ingest.pipeline.boilerplate import GramCounter, frequent_above
from services.ingest.pipeline.text import distinct
from tests.unit.ingest import templated
from tests.unit.ingest.builders import assistant, chat, user
from tests.unit.ingest.screening import screen
from tests.unit.ingest.templated import Row, Template

SETS = {
    "an instruction in the user turn": Template(43, 2).rows,
    "a long instruction in the user turn": Template(900, 7).rows,
    "an instruction in the system turn": Template(200, 40, "system").rows,
    "a few-shot prompt": templated.few_shot,
    "extraction from forms": templated.extraction,
    "canned answers": templated.canned_answers,
}


@pytest.mark.parametrize("name", SETS)
def test_a_templated_set_is_kept_with_and_without_a_holdout_of_its_task(name: str) -> None:
    training, holdout = SETS[name](200, seed=1), SETS[name](60, seed=2)
    assert len(screen(training).kept) == 200
    assert len(screen(training, holdout=holdout).kept) == 200


def test_several_tasks_on_one_document_are_kept() -> None:
    assert len(screen(templated.tasks_per_document(40, seed=1)).kept) == 200


@pytest.mark.parametrize("rows", [8, 12, 20, 40])
def test_a_small_templated_set_is_kept(rows: int) -> None:
    training, holdout = Template(200, 2).rows(rows, seed=1), Template(200, 2).rows(rows, seed=2)
    assert len(screen(training, holdout=holdout).kept) == rows


def mixed(seed: int) -> list[Row]:
    """Templated rows, with copies: whole, with a word more, under another answer."""
    rng, rows = random.Random(seed), Template(60, 3).rows(300, seed=seed)
    copies = []
    for row in rng.sample(rows, 60):
        asked, answered = (message["content"] for message in row["messages"])
        change = rng.choice(["", " ok", "  \n", " and so on and so on and so on"])
        copies.append(chat(user(asked + change), assistant(rng.choice([answered, "label 9"]))))
    return rng.sample([*rows, *copies], 360)


@pytest.mark.parametrize("seed", range(5))
def test_the_decisions_are_those_of_the_rules_written_down_plainly(seed: int) -> None:
    rows = mixed(seed)
    result = screen(rows, max_dropped_ratio=1)
    repeated = {duplicate.line for lines in result.counts.clusters.values() for duplicate in lines}
    assert repeated == {index + 1 for index in reference.repeated(rows, keeps_case=True, counts_once=True)}
    training, holdout = rows[60:], rows[:60]
    result = screen(
        training, holdout=holdout, contamination="keep", exact_duplicates="keep", near_duplicates="keep"
    )
    by_share = {overlap.line for overlap in result.counts.overlaps if overlap.is_contaminated}
    assert by_share == {index + 1 for index in reference.contaminated(training, holdout)}


def test_any_number_of_processes_makes_the_same_decisions() -> None:
    rows = mixed(9)
    one, two = (screen(rows, holdout=rows[:20], workers=workers, max_dropped_ratio=1) for workers in (1, 2))
    assert (one.kept, one.counts.report()) == (two.kept, two.counts.report())


@pytest.mark.parametrize(
    ("rows", "limit"), [(1, 4), (9, 4), (12, 6), (20, 10), (1000, 10), (1100, 11), (1_000_000, 10_000)]
)
def test_boilerplate_is_what_stands_in_more_than_ten_rows_or_a_hundredth_of_them(
    rows: int, limit: int
) -> None:
    assert frequent_above(rows) == limit


class TestGramCounter:
    def rows(self) -> list[list[int]]:
        rng = random.Random(1)
        # The smaller a number, the more rows have it.
        return [[number for number in range(1, 400) if rng.random() < 5 / number] for _ in range(500)]

    def frequent(self, counter: GramCounter, *, above: int) -> list[int]:
        for row in self.rows():
            counter.add(distinct(np.array(row, np.uint64)))
        return counter.frequent(above).tolist()

    def test_it_counts_rows_exactly(self) -> None:
        counts = np.bincount([number for row in self.rows() for number in row], minlength=400)
        assert self.frequent(GramCounter(), above=40) == np.flatnonzero(counts > 40).tolist()

    def test_with_too_many_grams_the_rare_are_given_up_and_a_count_is_too_low_by_a_known_number(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("services.ingest.pipeline.boilerplate.BUFFERED_GRAMS", 500)
        counts = np.bincount([number for row in self.rows() for number in row], minlength=400)
        counter = GramCounter(max_grams=360)
        frequent_grams = self.frequent(counter, above=40)
        assert 0 < counter.undercount < 40
        assert set(np.flatnonzero(counts > 40 + counter.undercount).tolist()) <= set(frequent_grams)
        assert set(frequent_grams) <= set(np.flatnonzero(counts > 40).tolist())
