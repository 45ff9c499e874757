"""What scoring needs of a model in memory: one side of it, its tokenizer and its limits."""

# ruff: noqa: N803 shapes are part of tensors' names
# B = rows of a batch, T = tokens of a row, U = positions that predict something, V = vocabulary
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shared.chat.tokenizer import ChatTokenizer


@dataclass(frozen=True)
class Scorer:
    """One side of a model in memory. `model` computes the side that `Models.on` switched on."""

    model: Any
    tokenizer: Any
    device: torch.device
    """Where a batch is put and logits are returned; layers may be on others, and their keys and values with them."""
    dtype: torch.dtype
    max_tokens: int
    max_new_tokens: int
    """Most tokens of an answer to a safety prompt."""
    max_answer_tokens: int
    """Most tokens of an answer to a row of the holdout."""
    batch_tokens: int
    """Most tokens that are in memory at once, padding, shared prefix and answers to come included."""
    forward_tokens: int
    """Most tokens of one forward pass of many; see `Limits.forward_tokens`."""
    inputs: frozenset[str]
    """Names of what the model's forward pass accepts."""
    shared_tokens: int = 0
    """Length in tokens up to which questions share what is equal in them; see `sharing`."""

    @cached_property
    def chat(self) -> ChatTokenizer:
        return ChatTokenizer(self.tokenizer)

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def filler(self) -> int:
        """Token that padding consists of."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(token for token in known if token is not None)

    def logits_at(self, indices_U: Tensor, **inputs: Any) -> Tensor:
        """Return logits (U, V) at indices of the flattened batch (B * T).

        The head computes those alone: at a vocabulary of 32,000 and more it costs as much as many layers.
        """
        is_picked = False

        def pick(_head: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
            nonlocal is_picked
            if not given:
                return None
            is_picked = True
            hidden = given[0].flatten(0, 1)
            return (hidden[indices_U.to(hidden.device)][None], *given[1:])

        head = self.model.get_output_embeddings()
        hook = head.register_forward_pre_hook(pick) if head is not None else None
        try:
            logits: Tensor = self.model(**self._accepted(inputs)).logits
        finally:
            if hook is not None:
                hook.remove()
        return logits[0] if is_picked else logits.flatten(0, 1)[indices_U]

    def forward(self, *, logits_to_keep: int, **inputs: Any) -> Any:
        """Return the model's output, with the logits of the last `logits_to_keep` positions."""
        out = self.model(**self._accepted({**inputs, "logits_to_keep": logits_to_keep}))
        out.logits = out.logits[:, -logits_to_keep:]
        return out

    def _accepted(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in inputs.items() if name in self.inputs}
