"""Several jobs beside one of them."""

from decimal import Decimal
from typing import Any

import pytest

from services.gateway.model import Job
from services.gateway.page.comparison import differences, in_order, runs, why_not_comparable
from services.gateway.page.views import job_view
from tests.builders import NOON, a_sha
from tests.unit.gateway.test_page_views import a_job


def a_run(
    *, valid_loss: float | None = 1.0, data: str | None = "data", base: str = "base", **recipe: Any
) -> Job:
    return a_job(
        spec={"base_model": "tiny", "base_sha": a_sha(base), "recipe": recipe},
        dataset_version=data and a_sha(data),
        valid_loss=valid_loss,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valid_loss": 0.978}, "0.02200 better"),
        ({"valid_loss": 1.25}, "0.2500 worse"),
        ({}, "equal"),
        ({"valid_loss": None}, "unknown"),
        ({"data": "others", "valid_loss": 0.1}, "not comparable: other data"),
        ({"base": "others", "valid_loss": 0.1}, "not comparable: another base model"),
        ({"data": None}, "not comparable: its dataset is not ready"),
    ],
)
def test_a_loss_is_held_against_the_baseline_where_both_are_of_one_thing(changes: dict[str, Any], words: str):
    rows = [a_run(), a_run(**changes)]
    base, other = runs(rows, [job_view(row, now=NOON) for row in rows])
    assert (base.change, other.change) == ("baseline", words)


def test_a_baseline_without_data_makes_nothing_comparable():
    assert why_not_comparable(a_run(), a_run(data=None)) == "the baseline's dataset is not ready"


def test_rows_are_sorted_and_runs_keep_their_numbers():
    rows = [a_run(valid_loss=2.0), a_run(valid_loss=None), a_run(valid_loss=1.0)]
    costs = ("3", "1", "2")
    rows = [row.model_copy(update={"cost": Decimal(cost)}) for row, cost in zip(rows, costs, strict=True)]
    shown = runs(rows, [job_view(row, now=NOON) for row in rows])
    assert [run.number for run in in_order(shown, "chosen")] == [1, 2, 3]
    assert [run.number for run in in_order(shown, "loss")] == [3, 1, 2]
    assert [run.number for run in in_order(shown, "cost")] == [2, 3, 1]


def test_settings_that_differ_are_shown_alone():
    rows = [a_run(learning_rate=2e-4), a_run(learning_rate=1e-4, lora={"rank": 8}), a_run(learning_rate=2e-4)]
    shown, num_equal = differences(rows)
    assert {each.name: each.values for each in shown} == {
        "recipe.learning_rate": ("2e-4", "1e-4", "2e-4"),
        "recipe.lora.rank": ("32", "8", "32"),
    }
    assert [each.is_other for each in shown] == [(False, True, False)] * 2
    assert num_equal > 20
