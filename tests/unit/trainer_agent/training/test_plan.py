import numpy as np
import pytest

from services.trainer_agent.training.dataset import Example, Window
from services.trainer_agent.training.plan import Layout, MicroBatch, StepPlan, chain, chain_of, examples_of


def an_example(number: int, length: int, *, mask: list[int] | None = None, side: int = 0) -> Example:
    loss_mask = np.array(mask or [1] * length, dtype=np.uint8)
    return Example(number, np.arange(length, dtype=np.int32), loss_mask, side)


def windows_of(*lengths: list[int]) -> tuple[Window, ...]:
    numbers = iter(range(100))
    return tuple(tuple(an_example(next(numbers), length) for length in window) for window in lengths)


def a_layout(*, packed: bool = True, micro_batch_size: int = 2) -> Layout:
    return Layout(packed=packed, micro_batch_size=micro_batch_size, max_seq_length=10)


def ids(micro_batches: tuple[MicroBatch, ...]) -> list[list[list[int]]]:
    return [[[example.id for example in row] for row in batch] for batch in micro_batches]


FIVE = StepPlan(windows_of([4, 6], [10], [3, 3, 3], [9], [5, 5]))


class TestMicroBatches:
    def test_packed_rows_are_whole_windows(self):
        assert ids(FIVE.micro_batches(a_layout(), rank=0, world_size=1)) == [
            [[0, 1], [2]],
            [[3, 4, 5], [6]],
            [[7, 8]],
        ]

    def test_unpacked_rows_are_single_examples_within_the_same_padded_size(self):
        batches = FIVE.micro_batches(a_layout(packed=False), rank=0, world_size=1)
        assert ids(batches) == [[[2], [6]], [[1], [7], [8]], [[0], [3], [4], [5]]]
        assert all(len(batch) * max(len(row[0].tokens) for row in batch) <= 20 for batch in batches)

    @pytest.mark.parametrize("packed", [True, False])
    @pytest.mark.parametrize("world_size", [1, 2, 3, 7])
    def test_ranks_share_every_example_once_in_equally_many_passes(self, packed, world_size):
        layout = a_layout(packed=packed, micro_batch_size=1)
        shares = [FIVE.micro_batches(layout, rank=r, world_size=world_size) for r in range(world_size)]
        assert len({len(share) for share in shares}) == 1
        trained = [example.id for share in shares for batch in share for row in batch for example in row]
        assert sorted(trained) == list(range(9))


class TestPairs:
    LENGTHS = ((4, 2), (9, 1), (3, 5), (2, 2), (6, 7))
    WINDOWS = tuple(
        tuple(an_example(2 * pair + side, lengths[side], side=side + 1) for side in (0, 1))
        for pair, lengths in enumerate(LENGTHS)
    )

    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_both_sides_are_in_one_micro_batch_in_their_order(self, world_size):
        layout = a_layout(packed=False)
        seen = []
        for rank in range(world_size):
            for batch in StepPlan(self.WINDOWS).micro_batches(layout, rank=rank, world_size=world_size):
                numbers = [example.id for example in examples_of(batch)]
                assert [number % 2 for number in numbers] == [0, 1] * (len(numbers) // 2)
                assert [number // 2 for number in numbers[0::2]] == [number // 2 for number in numbers[1::2]]
                seen += numbers
        assert sorted(seen) == list(range(10))

    def test_a_group_is_no_larger_than_the_windows_of_a_micro_batch(self):
        batches = StepPlan(self.WINDOWS).micro_batches(a_layout(packed=False), rank=0, world_size=1)
        for batch in batches:
            padded = len(batch) * max(len(row[0].tokens) for row in batch)
            assert padded <= 20 or len(batch) == 2


class TestCounts:
    def test_the_first_token_is_nobodys_target(self):
        example = an_example(0, 4, mask=[1, 0, 1, 1])
        assert example.targets.tolist() == [2, 3]

    def test_tokens_are_counted_without_padding(self):
        assert FIVE.num_tokens == 48


class TestDigests:
    def test_a_batch_is_known_by_its_examples_in_order(self):
        swapped = StepPlan(FIVE.windows[::-1])
        assert FIVE.batch_sha256 == StepPlan(FIVE.windows).batch_sha256
        assert FIVE.batch_sha256 != swapped.batch_sha256

    def test_the_chain_depends_on_what_came_before(self):
        assert chain(chain("", "a"), "b") != chain("", "b")
        assert chain(chain("", "a"), "b") != chain(chain("", "b"), "a")


class Listed(tuple):
    """Windows as a dataset has them."""

    __slots__ = ()

    def example_ids(self, index):
        return np.array([example.id for example in self[index]])


def test_the_chain_of_batches_is_that_of_the_steps_that_consumed_them():
    batches = [(0, 1), (4,), (2, 3), (1, 0)]
    digest = ""
    for batch in batches:
        digest = chain(digest, StepPlan(tuple(FIVE.windows[index] for index in batch)).batch_sha256)
    windows = Listed(FIVE.windows)
    assert chain_of(batches, windows) == digest
    assert chain_of(batches[:-1], windows) != digest
    assert chain_of([], windows) == ""
