"""What a sweep tried, as pictures: where each value is on its axis, what is best so far, what a parameter explains."""

from decimal import Decimal
from typing import Any

import pytest

from schemas.sweep import Choices, Range, TrialState
from services.gateway.page import sweep_pictures
from services.gateway.page.sweep_pictures import FEWEST_TRIALS, explained, share_of
from services.gateway.sweeps import TrialRow

RATE = Range(low=1e-5, high=1e-3, log=True)
RANK = Choices(choices=(4, 8, 16))
PARAMETERS = {"learning_rate": RATE, "lora.rank": RANK}


def a_trial(number: int, loss: float | None, **changes: Any) -> TrialRow:
    fields = {
        "sweep_id": "sweep-1",
        "number": number,
        "job_id": f"ftjob-{number}",
        "parameters": {"learning_rate": 1e-4, "lora.rank": 8},
        "state": TrialState.COMPLETED,
        "valid_loss": loss,
        "duplicate_of": None,
        "message": "",
        "cost": Decimal(0),
        "fine_tuned_model": None,
        "verdict": None,
        "newest_loss": None,
        "progress": None,
    }
    return TrialRow.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("parameter", "value", "share"),
    [(RATE, 1e-5, 0), (RATE, 1e-4, 0.5), (RATE, 1e-3, 1), (Range(low=0.0, high=0.4), 0.1, 0.25), (RANK, 8, 0.5),
     (Choices(choices=("adamw",)), "adamw", 0.5)],
)  # fmt: skip
def test_a_value_is_where_it_is_searched(parameter, value, share):
    assert share_of(parameter, value) == pytest.approx(share)


@pytest.mark.parametrize(
    ("value", "text"), [(2e-4, "2e-4"), (0.25, "0.25"), (16, "16"), (True, "yes"), ("wsd", "wsd")]
)
def test_values_are_written_as_people_do(value, text):
    assert sweep_pictures.value(value) == text


def test_the_line_falls_with_each_better_one_and_pruned_ones_do_not_count():
    trials = [a_trial(0, 2.0), a_trial(1, 3.0), a_trial(2, 0.5, state=TrialState.PRUNED), a_trial(3, 1.0)]
    course = sweep_pictures.course(trials)
    assert [dot.kind for dot in course.dots] == ["completed", "completed", "pruned", "completed"]
    assert course.path.count("V") == 2
    assert course.words == "validation loss of 4 trials; the lowest so far is 1.000"
    assert [tick.text for tick in course.numbers] == ["0", "1", "3"]


def test_there_is_no_picture_before_a_loss():
    trials = [a_trial(0, None, state=TrialState.RUNNING), a_trial(1, None, state=TrialState.DUPLICATE)]
    assert sweep_pictures.course(trials) is None
    assert sweep_pictures.parallel(PARAMETERS, trials) is None


def test_the_best_fifth_is_drawn_last_and_strong():
    trials = [a_trial(number, 1 + number / 10) for number in range(10)]
    trials.append(a_trial(10, 0.1, state=TrialState.PRUNED))
    drawn = sweep_pictures.parallel(PARAMETERS, trials)
    assert [line.kind for line in drawn.lines] == ["pruned", *["other"] * 8, *["best"] * 2]
    assert [axis.name for axis in drawn.axes] == ["learning_rate", "lora.rank", "loss"]
    assert len({axis.x for axis in drawn.axes}) == 3


def test_equal_losses_are_in_the_middle_and_divide_by_nothing():
    drawn = sweep_pictures.course([a_trial(0, 1.0), a_trial(1, 1.0)])
    assert len({dot.y for dot in drawn.dots}) == 1
    assert sweep_pictures.parallel(PARAMETERS, [a_trial(0, 1.0)]) is not None


class TestImportance:
    def test_what_decides_alone_explains_nearly_all(self):
        trials = [
            a_trial(n, {4: 3.0, 8: 2.0, 16: 1.0}[rank] + n % 2 / 100, parameters={"learning_rate": rate, "lora.rank": rank})
            for n, (rank, rate) in enumerate((rank, rate) for rank in (4, 8, 16) for rate in (1e-5, 1e-4, 3e-4, 1e-3))
        ]  # fmt: skip
        first, second = sweep_pictures.importances(PARAMETERS, trials)
        assert (first.name, first.share > 0.99) == ("lora.rank", True)
        assert (second.name, second.share) == ("learning_rate", 0.0)

    def test_nothing_is_said_of_a_few(self):
        trials = [a_trial(number, float(number)) for number in range(FEWEST_TRIALS - 1)]
        assert sweep_pictures.importances(PARAMETERS, trials) == []

    def test_chance_explains_nothing(self):
        assert explained([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]) == 0.0
        assert explained([[1.0, 1.0], [1.0, 1.0]]) == 0.0
        assert explained([[1.0, 2.0]]) == 0.0
        assert explained([[1.0, 1.0], [2.0, 2.0]]) == 1.0
