"""Curves on the page: smoothing as TensorBoard's, and buckets that stay where they are."""

import math

import pytest

from services.gateway.page.curves import breaks, bucket_size, curve, onwards, smoothed

NAN = float("nan")


def test_smoothing_has_no_bias_from_its_start():
    values, total, count = smoothed([2.0, 2.0, 2.0], 0.6)
    assert values == pytest.approx([2.0, 2.0, 2.0])
    assert (total, count) == (pytest.approx(2.0 * (1 - 0.6**3)), 3)


def test_smoothing_is_tensorboards():
    values, _, _ = smoothed([1.0, 3.0], 0.6)
    assert values == pytest.approx([1.0, (0.6 * 0.4 * 1.0 + 0.4 * 3.0) / (1 - 0.36)])


def test_what_is_no_number_is_passed_over():
    values, _, count = smoothed([1.0, NAN, 1.0], 0.6)
    assert (values, count) == (pytest.approx([1.0, 1.0, 1.0]), 2)


def test_without_a_weight_nothing_is_smoothed():
    assert smoothed([1.0, 5.0], 0.0)[0] == [1.0, 5.0]


def test_a_value_has_as_many_digits_as_are_of_use():
    assert curve([1], [1 / 3], weight=0.0, pixels=100).last == [0.333333]


@pytest.mark.parametrize(
    ("num_steps", "pixels", "every"), [(10, 800, 1), (1_600, 800, 1), (1_601, 800, 4), (100_000, 800, 128)]
)
def test_a_bucket_is_the_smallest_power_of_two_that_fits(num_steps, pixels, every):
    assert bucket_size(range(1, num_steps + 1), pixels) == every


def a_curve(num_steps: int, **options):
    steps = [*range(1, num_steps + 1)]
    values = [math.sin(step) for step in steps]
    return curve(steps, values, **{"weight": 0.6, "pixels": 100} | options)


def test_a_long_curve_keeps_extremes_and_ends():
    drawn = a_curve(100_000)
    assert len(drawn.steps) <= 101 + 1
    assert (drawn.steps[0], drawn.steps[-1]) == (1, 100_000)
    assert min(drawn.low) == pytest.approx(min(math.sin(step) for step in range(1, 100_001)))
    assert max(drawn.high) == pytest.approx(max(math.sin(step) for step in range(1, 100_001)))
    assert drawn.num_points == 100_000


def test_a_drawn_value_does_not_change_while_the_run_goes_on():
    before, after = a_curve(5_000), a_curve(5_050)
    assert before.every == after.every
    whole = len(before.steps) - 1  # the last bucket may be part of one
    for field in ("steps", "low", "high", "smooth", "last"):
        assert getattr(before, field)[:whole] == getattr(after, field)[:whole]


def test_a_window_is_smoothed_from_the_beginning():
    whole, window = a_curve(200), a_curve(200, first=101, last=150)
    assert window.steps == [*range(101, 151)]
    assert window.smooth == whole.smooth[100:150]
    assert window.every == 1


def test_what_is_no_number_is_named_and_drawn_as_a_gap():
    drawn = curve([1, 2, 3], [1.0, NAN, 2.0], weight=0.0, pixels=100)
    assert (drawn.last, drawn.not_numbers) == ([1.0, None, 2.0], [2])


def test_no_steps_make_no_curve():
    assert curve([], [], weight=0.6, pixels=100).steps == []


@pytest.mark.parametrize(
    ("seconds", "places"),
    [
        ([0.0, 1.24, 1.2, 5.0], [0.0, 1.2, 1.2, 5.0]),
        ([3.0, 1.0, 4.0], [3.0, 3.0, 4.0]),
        ([-0.3, 2.0], [0.0, 2.0]),
        ([None, 2.0], [0.0, 2.0]),
        ([None, None], []),
        ([], []),
    ],
)
def test_time_never_goes_back(seconds, places):
    assert onwards(seconds) == places


@pytest.mark.parametrize(
    ("attempts", "places"),
    [([1, 1, 2, 2, 4], [2, 4]), ([1, 1], []), ([None, 1], [1]), ([3], []), ([], [])],
)
def test_a_curve_over_time_is_interrupted_where_another_attempt_begins(attempts, places):
    assert breaks(attempts) == places
