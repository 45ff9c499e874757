"""Supervised fine-tuning (`lora`, `qlora`, `sft`): to answer as the rows do.

A batch is rows of examples, each a prompt and its answers. The loss is the mean negative log-likelihood of the tokens
of the answers, which the dataset's loss mask marks; a prompt is read, and not learnt.
"""

from collections.abc import Sequence

import torch

from schemas.specification import Recipe
from services.trainer_agent.training.dataset import Window
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.methods.objective import Objective, Terms
from services.trainer_agent.training.plan import MicroBatch
from services.trainer_agent.training.tensors import inputs_of


def terms(network: TokenLosses, micro_batch: MicroBatch, device: torch.device) -> Terms:
    """Return one term for each token that the masks mark."""
    return Terms(network(inputs_of(micro_batch, device)))


def num_terms(windows: Sequence[Window]) -> int:
    return sum(len(example.targets) for window in windows for example in window)


def supervised(_: Recipe) -> Objective:
    return Objective(terms, num_terms)
