"""The training loss as a small picture."""

from math import inf, nan

from services.gateway.page.sparklines import HEIGHT, MARGIN, WIDTH, drawn

TOP, BOTTOM, RIGHT = MARGIN, HEIGHT - MARGIN, WIDTH - MARGIN


def test_a_loss_is_as_high_as_it_varies_and_as_wide_as_its_steps():
    picture = drawn([100, 200, 400], [3.0, 2.0, 1.0])
    assert picture is not None
    points = [tuple(map(float, point.split(","))) for point in picture.lines[0].split(" ")]
    middle = (TOP + BOTTOM) / 2
    assert points == [(MARGIN + 84 / 4, TOP), (MARGIN + 84 / 2, middle), (RIGHT, BOTTOM)]
    assert picture.last == (RIGHT, BOTTOM)
    assert "from 3.000 at step 100 to 1.000 at step 400, lowest 1.000; 3 points" in picture.words


def test_a_line_has_a_gap_where_the_loss_is_no_number():
    picture = drawn([1, 2, 3, 4, 5], [3.0, 2.0, nan, 2.5, inf])
    assert picture is not None
    assert [len(line.split(" ")) for line in picture.lines] == [2, 1]
    assert picture.last is None
    assert "to not a number at step 5" in picture.words


def test_a_constant_is_in_the_middle_and_nothing_without_a_finite_loss():
    constant = drawn([1, 2], [2.0, 2.0])
    assert constant is not None
    assert constant.lines == ("44.0,10.0 86.0,10.0",)
    assert drawn([], []) is None
    assert drawn([1], [nan]) is None
