"""The loss of the positions that have a target, without logits of all the others."""

# ruff: noqa: N803, N806 shapes are part of tensors' names
# B = rows, T = tokens per row, H = hidden size, V = vocabulary, K = loss positions
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from services.trainer_agent.training.tensors import Inputs

LOGITS_PER_CHUNK = 2**26
"""256 MiB of float32 logits exist at a time."""


class TokenLosses(nn.Module):
    """A causal language model that answers with losses. It is the root that sharding wraps, head included."""

    def __init__(self, model: Any, *, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.compute_dtype = compute_dtype

    @property
    def causal_lm(self) -> Any:
        """The model itself, adapters in place."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def forward(self, inputs: Inputs) -> Tensor:
        """Returns: (K,) float32, the negative log-likelihood of each target."""
        with self._autocast(inputs.tokens_BT):
            # A cache or a mask here would switch the borders between packed examples off, silently.
            hidden_BTH = self.causal_lm.base_model(
                input_ids=inputs.tokens_BT, position_ids=inputs.positions_BT, use_cache=False
            ).last_hidden_state
            hidden_KH = hidden_BTH.flatten(0, 1).index_select(0, inputs.sources_K)
            return self._in_chunks(hidden_KH, inputs.targets_K)

    def whole_logits_losses(self, tokens_T: Tensor) -> Tensor:
        """The reference: losses of all tokens but the first, by the model's own forward pass over a sequence.

        Returns: (T - 1,) float32.
        """
        with self._autocast(tokens_T):
            logits = self.model(input_ids=tokens_T[None], use_cache=False).logits[0, :-1]
            return cross_entropy(logits.float(), tokens_T[1:], reduction="none")

    def _in_chunks(self, hidden_KH: Tensor, targets_K: Tensor) -> Tensor:
        head = self.causal_lm.get_output_embeddings()
        size = max(1, LOGITS_PER_CHUNK // self.causal_lm.config.get_text_config().vocab_size)
        if len(targets_K) <= size:
            return _losses(head, hidden_KH, targets_K)
        pieces = zip(torch.split(hidden_KH, size), torch.split(targets_K, size), strict=True)
        # Recomputed in the backward pass, else all chunks' logits would be kept for it.
        return torch.cat([checkpoint(_losses, head, *piece, use_reentrant=False) for piece in pieces])

    def _autocast(self, tokens: Tensor) -> torch.autocast:
        reduced = self.compute_dtype is not torch.float32
        return torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=reduced)


def _losses(head: nn.Module, hidden_KH: Tensor, targets_K: Tensor) -> Tensor:
    return cross_entropy(head(hidden_KH).float(), targets_K, reduction="none")
