"""Preference optimisation (`dpo`): to find the chosen answer likelier than the rejected one.

A batch is rows of pairs: a prompt with its chosen answer, and the same prompt with its rejected one, neither of which
sees the other. A term is a pair. The reward of an answer is beta times what its log-probability has gained on the
reference's, and the loss is the negative log-likelihood that the chosen one wins, -log sigmoid(chosen reward -
rejected reward), as by Bradley and Terry; label smoothing takes it the other way round for a share of the pairs.

`length_normalised` divides the log-probabilities of an answer by the number of its tokens. `simpo` does too, compares
with no reference, and subtracts its target margin from the difference of the rewards.

Sources: DPO, arXiv:2305.18290, equation 7; label smoothing, its authors' note "cDPO"; length normalisation, Tulu 3,
arXiv:2411.15124, section 5.1; SimPO, arXiv:2405.14734, equation 6.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from schemas.artifacts import CHOSEN
from schemas.specification import DpoSpec, Recipe
from services.trainer_agent.training.dataset import Example, Window
from services.trainer_agent.training.loss import TokenLosses
from services.trainer_agent.training.methods.objective import Objective, Terms
from services.trainer_agent.training.plan import MicroBatch, examples_of
from services.trainer_agent.training.tensors import inputs_of

NUMBERS = ("chosen_reward", "rejected_reward", "reward_margin", "reward_accuracy")


def preference(recipe: Recipe) -> Objective:
    dpo = recipe.preferences

    def terms(network: TokenLosses, micro_batch: MicroBatch, device: torch.device) -> Terms:
        return _terms(dpo, network, micro_batch, device)

    return Objective(terms, num_terms, NUMBERS, has_reference=dpo.has_reference, is_of_tokens=False)


def num_terms(windows: Sequence[Window]) -> int:
    return sum(example.side == CHOSEN for window in windows for example in window)


def log_probabilities(network: TokenLosses, micro_batch: MicroBatch, device: torch.device) -> Tensor:
    """Return the log-probability of the answer of each example, (E,) in float32: the sum over its target tokens."""
    losses = network(inputs_of(micro_batch, device))
    counts = torch.tensor([len(example.targets) for example in examples_of(micro_batch)], dtype=torch.int64)
    owners = torch.repeat_interleave(torch.arange(len(counts)), counts).to(device)
    sums: Tensor = losses.new_zeros(len(counts)).index_add(0, owners, losses)
    return -sums


def _terms(dpo: DpoSpec, network: TokenLosses, micro_batch: MicroBatch, device: torch.device) -> Terms:
    examples = examples_of(micro_batch)
    gains = log_probabilities(network, micro_batch, device)
    if dpo.has_reference:
        gains = gains - _of_each(examples, [_reference(example) for example in examples], device)
    if dpo.loss != "dpo":
        gains = gains / _of_each(examples, [len(example.targets) for example in examples], device)
    chosen, rejected = (dpo.beta_value * gains).view(-1, 2).unbind(1)
    margins = chosen - rejected
    compared = margins - dpo.target_margin
    losses = -(1 - dpo.label_smoothing) * logsigmoid(compared) - dpo.label_smoothing * logsigmoid(-compared)
    numbers = (chosen, rejected, margins, (margins > 0).float())
    return Terms(losses, dict(zip(NUMBERS, (each.detach() for each in numbers), strict=True)))


def _of_each(examples: Sequence[Example], values: Sequence[float], device: torch.device) -> Tensor:
    assert len(values) == len(examples), "one for each example"
    return torch.tensor(values, dtype=torch.float32, device=device)


def _reference(example: Example) -> float:
    assert example.reference is not None, "the reference is there before the first step"
    return example.reference
