"""How near exported files come to the model that was trained: both asked for the next token of the same texts.

T = positions of a text, V = tokens of the vocabulary
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# ruff: noqa: N803 shapes are part of tensors' names
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.registry.model import Distances

Forward = Callable[[Sequence[int]], Tensor]
"""A function that returns the logits (T, V) of token ids in float32."""


class Logits:
    """Logits of texts in files: those of all texts may need more memory than a model."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()

    def save(self, index: int, logits_TV: Tensor) -> None:
        np.save(self._path(index), logits_TV.numpy())

    def load(self, index: int) -> Tensor:
        array: NDArray[np.float32] = np.load(self._path(index))
        return torch.from_numpy(array)

    def _path(self, index: int) -> Path:
        return self._directory / f"{index}.npy"


@dataclass
class Sums:
    """Sums over all positions at which two models were compared."""

    num_tokens: int = 0
    num_logits: int = 0
    max_difference: float = 0.0
    difference: float = 0.0
    kl: float = 0.0
    max_kl: float = 0.0
    num_equal: int = 0
    is_finite: bool = True

    def add(self, trained_TV: Tensor, other_TV: Tensor) -> None:
        """Take in the logits of one text."""
        difference = (trained_TV - other_TV).abs()
        kl = divergences(trained_TV, other_TV)
        self.is_finite = self.is_finite and bool(other_TV.isfinite().all())
        self.num_tokens += len(kl)
        self.num_logits += difference.numel()
        self.max_difference = max(self.max_difference, float(difference.max()))
        self.difference += float(difference.double().sum())
        self.kl += float(kl.sum())
        self.max_kl = max(self.max_kl, float(kl.max()))
        self.num_equal += int((trained_TV.argmax(-1) == other_TV.argmax(-1)).sum())

    def distances(self, *, training_kl: float | None, equal_token_ids: bool | None) -> Distances:
        return Distances(
            num_tokens=self.num_tokens,
            max_difference=self.max_difference,
            mean_difference=self.difference / self.num_logits,
            mean_kl=self.kl / self.num_tokens,
            max_kl=self.max_kl,
            training_kl=training_kl,
            equal_next_tokens=self.num_equal / self.num_tokens,
            equal_token_ids=equal_token_ids,
            is_finite=self.is_finite,
        )


def divergences(trained_TV: Tensor, other_TV: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of `other` from `trained` at each position, in nats."""
    trained = trained_TV.double().log_softmax(-1)
    other = other_TV.double().log_softmax(-1)
    return (trained.exp() * (trained - other)).sum(-1).clamp(min=0)


def forward_of(model: Any) -> Forward:
    def forward(token_ids: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
        return logits.float()

    return forward
