"""What each method of training defines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from services.trainer_agent.training.dataset import Window
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.plan import MicroBatch


@dataclass(frozen=True)
class Terms:
    """Terms of the loss of one micro batch; an empty one has none."""

    losses: Tensor
    """Loss of each term, with its gradient. Shape (terms,), float32."""
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    """Other numbers that the method measures of its terms, by name. Each of shape (terms,), without a gradient."""

    @property
    def sums(self) -> list[float]:
        """Sum of the losses, then of each number."""
        return [
            float(each.detach().sum(dtype=torch.float64)) for each in (self.losses, *self.numbers.values())
        ]


@dataclass(frozen=True)
class Objective:
    """What a method defines. The loss of a step is the mean of its terms, over all micro batches and ranks."""

    terms: Callable[[TokenLosses, MicroBatch, torch.device], Terms]
    num_terms: Callable[[Sequence[Window]], int]
    """Counts the terms of windows before any of them is computed, since the count divides every gradient."""
    numbers: tuple[str, ...] = ()
    """Names of the numbers measured of the terms; their means over a step and over a validation are reported."""
    has_reference: bool = False
    """Whether the log-probabilities of all answers by the model at step 0 must be known."""
    is_of_tokens: bool = True
    """Whether the loss is a mean over tokens, so that e to the power of it is their perplexity."""
    measures_start: bool = False
    """Whether the loss on the whole validation file is measured before the first step, too."""

    def means(self, sums: Sequence[float], count: int) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the mean of each number from their sums over all micro batches and ranks."""
        loss, *others = (total / max(1, count) for total in sums)
        return loss, dict(zip(self.numbers, others, strict=True))
