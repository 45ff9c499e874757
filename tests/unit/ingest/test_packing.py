"""Windows: every example once, none over the limit, nearly full, the same every time."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ingest.pipeline.packing import Packing, pack

LENGTHS = st.integers(1, 64).flatmap(
    lambda window: st.tuples(st.just(window), st.lists(st.integers(1, window), max_size=200))
)


def windows_of(packing: Packing) -> list[list[int]]:
    offsets = packing.window_offsets
    return [list(packing.window_examples[offsets[at] : offsets[at + 1]]) for at in range(packing.num_windows)]


@given(LENGTHS)
def test_every_example_is_in_one_window_and_no_window_is_over_the_limit(case: tuple[int, list[int]]) -> None:
    max_seq_length, lengths = case
    packing = pack(lengths, max_seq_length=max_seq_length)
    windows = windows_of(packing)
    assert Counter(example for window in windows for example in window) == Counter(range(len(lengths)))
    assert all(0 < sum(lengths[example] for example in window) <= max_seq_length for window in windows)
    assert packing.window_offsets[0] == 0
    assert packing.window_offsets[-1] == len(packing.window_examples) == len(lengths)


@given(LENGTHS)
def test_no_two_windows_would_fit_into_one(case: tuple[int, list[int]]) -> None:
    max_seq_length, lengths = case
    windows = windows_of(pack(lengths, max_seq_length=max_seq_length))
    emptiest = sorted(sum(lengths[example] for example in window) for window in windows)[:2]
    assert len(emptiest) < 2 or sum(emptiest) > max_seq_length


def test_the_fullest_window_that_has_room_is_chosen() -> None:
    # 6 and 5 open a window each; 4 fits both and leaves nothing beside 6.
    assert windows_of(pack([4, 5, 6], max_seq_length=10)) == [[2, 0], [1]]


def test_equal_lengths_keep_their_order() -> None:
    assert windows_of(pack([5, 4, 6, 5], max_seq_length=10)) == [[2, 1], [0, 3]]


def test_ordinary_chat_data_fills_9999_of_10000_tokens() -> None:
    rng = random.Random(1)
    lengths = [min(4096, max(8, int(rng.lognormvariate(5, 0.8)))) for _ in range(200_000)]
    packing = pack(lengths, max_seq_length=4096)
    assert sum(lengths) / (packing.num_windows * 4096) >= 0.9999


@pytest.mark.parametrize("length", [0, 11])
def test_a_length_that_no_window_takes_is_an_error(length: int) -> None:
    with pytest.raises(ValueError, match=f"example 1 has {length} tokens, expected 1 to 10"):
        pack([3, length], max_seq_length=10)


def test_nothing_is_no_window() -> None:
    assert windows_of(pack([], max_seq_length=10)) == []
