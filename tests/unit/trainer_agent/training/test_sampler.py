import numpy as np
import pytest

from services.trainer_agent.training.sampler import Sampler, epoch_order


def a_sampler(**changes: int) -> Sampler:
    return Sampler(**({"seed": 7, "num_windows": 10, "batch_size": 4, "num_epochs": 3} | changes))


def epoch_of(sampler: Sampler, epoch: int) -> list[int]:
    first = epoch * sampler.steps_per_epoch
    return [w for step in range(first, first + sampler.steps_per_epoch) for w in sampler.windows_after(step)]


def test_an_epoch_is_a_permutation_of_all_windows():
    assert sorted(epoch_of(a_sampler(), 1)) == list(range(10))


def test_every_epoch_and_every_seed_has_its_own_order():
    orders = [epoch_of(a_sampler(), 0), epoch_of(a_sampler(), 1), epoch_of(a_sampler(seed=8), 0)]
    assert len({tuple(order) for order in orders}) == 3


def test_the_order_does_not_depend_on_the_batch_size():
    assert epoch_of(a_sampler(batch_size=4), 0) == epoch_of(a_sampler(batch_size=3), 0)


def test_the_last_batch_of_an_epoch_holds_the_rest():
    sampler = a_sampler()
    assert (sampler.steps_per_epoch, sampler.num_steps) == (3, 9)
    assert [len(sampler.windows_after(step)) for step in range(3)] == [4, 4, 2]


def test_orders_written_down_by_older_runs_still_hold():
    # A resume reads positions in this order: it must never change.
    assert epoch_order(0, 0, 8).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert epoch_order(1, 2, 8).tolist() == [4, 2, 0, 6, 1, 5, 7, 3]


@pytest.mark.parametrize(("step", "epochs"), [(0, 0.0), (1, 0.4), (2, 0.8), (3, 1.0), (9, 3.0)])
def test_epochs_completed_count_windows(step, epochs):
    assert a_sampler().epochs_after(step) == pytest.approx(epochs)


def test_no_batch_follows_the_last_step():
    with pytest.raises(AssertionError, match="step 9 of 9"):
        a_sampler().windows_after(9)


def test_windows_are_plain_integers():
    assert not any(isinstance(w, np.integer) for w in a_sampler().windows_after(0))
