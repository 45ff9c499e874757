"""What a method has to say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.trainer_agent.training.dataset import Window
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.plan import MicroBatch


@dataclass(frozen=True)
class Objective:
    """The loss of a step is the mean of its terms, over all micro batches and ranks."""

    losses: Callable[[TokenLosses, MicroBatch, torch.device], Tensor]
    """The terms of one micro batch, each with its gradient. Shape (terms,), float32; none of an empty one."""
    num_terms: Callable[[Sequence[Window]], int]
    """How many terms these windows have: known before any of them is computed, since it divides every gradient."""
    reports_perplexity: bool = False
    """Whether the perplexity of the validation file is reported, before the first step and after the last."""
