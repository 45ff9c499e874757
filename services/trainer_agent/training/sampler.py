"""Which windows each step trains on: a function of (seed, epoch, index), whatever the number of processes."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Sampler:
    seed: int
    num_windows: int
    batch_size: int
    """Number of windows per step over all processes; the last batch of an epoch may be smaller."""
    num_epochs: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_windows // self.batch_size)

    @property
    def num_steps(self) -> int:
        return self.num_epochs * self.steps_per_epoch

    def windows_after(self, step: int) -> tuple[int, ...]:
        """Return the indices of the windows that are trained on after `step` completed steps."""
        assert 0 <= step < self.num_steps, f"no batch follows step {step} of {self.num_steps}"
        epoch, index = divmod(step, self.steps_per_epoch)
        order = epoch_order(self.seed, epoch, self.num_windows)
        return tuple(order[index * self.batch_size : (index + 1) * self.batch_size].tolist())

    def epochs_after(self, step: int) -> float:
        """Return the number of epochs completed after `step` steps, with a fraction."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return epoch + min(1.0, index * self.batch_size / self.num_windows)


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, num_windows: int) -> NDArray[np.intp]:
    """Return a permutation of all windows. Raw Philox numbers are the same in every numpy, so is their order."""
    numbers = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(num_windows)
    return np.argsort(numbers, kind="stable")
