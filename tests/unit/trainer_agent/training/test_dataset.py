import numpy as np
import pytest
from numpy.typing import NDArray

from services.trainer_agent.training.dataset import Windows, check_part


def a_part(**changes: list[int]) -> dict[str, NDArray[np.int64]]:
    """Three examples of 2, 3 and 1 tokens; the first window holds the last two."""
    part = {
        "tokens": [10, 11, 20, 21, 22, 30],
        "loss_mask": [0, 1, 0, 1, 1, 1],
        "example_offsets": [0, 2, 5, 6],
        "example_lines": [1, 2, 3],
        "window_offsets": [0, 2, 3],
        "window_examples": [1, 2, 0],
    }
    return {name: np.array(values) for name, values in (part | changes).items()}


def test_windows_of_all_parts_follow_one_another_with_ids_of_their_own():
    windows = Windows([a_part(), a_part(tokens=[1, 2, 3, 4, 5, 6])])
    assert len(windows) == 4
    assert [[example.id for example in windows[w]] for w in range(4)] == [[1, 2], [0], [4, 5], [3]]
    assert [windows.example_ids(w).tolist() for w in range(4)] == [[1, 2], [0], [4, 5], [3]]
    assert windows[0][0].tokens.tolist() == [20, 21, 22]
    assert windows[3][0].tokens.tolist() == [1, 2]
    assert windows.largest_token == 30


def test_there_is_no_window_behind_the_last():
    with pytest.raises(IndexError, match="window 2 of 2"):
        Windows([a_part()])[2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": [1]}, "loss_mask has 1 entries, tokens 6"),
        ({"example_offsets": [0, 2, 5, 7]}, "example_offsets do not divide tokens"),
        ({"example_offsets": [0, 5, 2, 6]}, "example_offsets do not divide tokens"),
        ({"window_offsets": [1, 2, 3]}, "window_offsets do not divide window_examples"),
        ({"window_examples": [1, 2, 3]}, "outside 0 to 2"),
        ({"window_examples": [-1, 2, 1]}, "outside 0 to 2"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        check_part(a_part(**changes))


def test_arrays_that_fit_are_accepted():
    check_part(a_part())
    check_part(a_part(**PAIRS), is_paired=True)


PAIRS = {
    "example_offsets": [0, 1, 3, 5, 6],
    "example_lines": [7, 7, 9, 9],
    "example_sides": [1, 2, 1, 2],
    "window_offsets": [0, 2, 4],
    "window_examples": [2, 3, 0, 1],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"example_sides": [1, 2, 1]}, "example_sides has 3 entries, example_lines 4"),
        ({"example_sides": [1, 2, 2, 1]}, "does not hold pairs"),
        ({"example_lines": [7, 7, 9, 7]}, "does not hold pairs"),
        ({"window_offsets": [0, 1, 4]}, "does not hold pairs"),
        ({"window_examples": [0, 3, 2, 1]}, "does not hold pairs"),
    ],
)
def test_windows_that_part_the_answers_of_a_row_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        check_part(a_part(**PAIRS | changes), is_paired=True)
    with pytest.raises(ValueError, match="there are no example_sides"):
        check_part(a_part(), is_paired=True)


def test_an_example_knows_its_side_and_what_the_base_model_says_of_it():
    windows = Windows([a_part(**PAIRS), a_part(**PAIRS)])
    windows.reference = np.arange(8, dtype=np.float32) / 4
    assert [(e.side, e.reference) for e in windows[2]] == [(1, 1.5), (2, 1.75)]
