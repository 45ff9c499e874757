"""What scoring needs of a model in memory: one side of it, its tokenizer and its limits."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from shared.chat.tokenizer import ChatTokenizer


@dataclass(frozen=True)
class Scorer:
    """`model` computes the side that `Models.on` switched on."""

    model: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    max_tokens: int
    max_new_tokens: int
    """Of an answer to a safety prompt."""
    max_answer_tokens: int
    """Of an answer to a row of the holdout."""
    batch_tokens: int
    """Tokens that are in memory at once, padding, shared prefix and answers to come included."""
    forward_tokens: int
    """Tokens of one forward pass of many: on a CPU fewer, whose caches hold no more."""
    inputs: frozenset[str]
    """Names of what the model's forward pass accepts."""
    shared_tokens: int = 0
    """Questions up to this length share what is equal in them; see `sharing`."""

    @cached_property
    def chat(self) -> ChatTokenizer:
        return ChatTokenizer(self.tokenizer)

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def filler(self) -> int:
        """The token that padding consists of."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(token for token in known if token is not None)

    def forward(self, *, logits_to_keep: int, **inputs: Any) -> Any:
        """The model's output; its logits are those of the last `logits_to_keep` positions."""
        asked = {**inputs, "logits_to_keep": logits_to_keep}
        out = self.model(**{name: value for name, value in asked.items() if name in self.inputs})
        out.logits = out.logits[:, -logits_to_keep:]
        return out
