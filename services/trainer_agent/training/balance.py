"""The loss that keeps a router from sending most tokens to few experts, as in the family's own forward pass.

Source: Switch Transformer, arXiv:2101.03961, equations 4 to 6; as transformers has it, over all layers together.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Balance:
    """How a family computes the loss of its routers."""

    function: Callable[..., Tensor]
    num_experts: int
    experts_per_token: int
    coefficient: float
    """Factor of the loss in what is minimised, from the model's configuration."""

    def loss(self, router_logits: Sequence[Tensor], is_token_BT: Tensor) -> Tensor:  # noqa: N803 a shape
        """Return the loss of all tokens but padding: `experts_per_token` where all experts are used alike.

        router_logits: of each layer with experts, of shape (B * T, experts). Returns: (), float32.
        """
        assert router_logits, f"{self.function.__module__} hands out no router logits"
        return self.function(
            gate_logits=tuple(each.float() for each in router_logits),
            num_experts=self.num_experts,
            top_k=self.experts_per_token,
            attention_mask=is_token_BT,
        )


def balance_of(causal_lm: Any) -> Balance | None:
    """Return how the family's loss is computed; None where transformers' code of the family adds none, or the
    configuration gives it no weight."""
    function = getattr(sys.modules[type(causal_lm).__module__], "load_balancing_loss_func", None)
    coefficient = getattr(causal_lm, "router_aux_loss_coef", None)
    if function is None or not coefficient:
        return None
    return Balance(function, causal_lm.num_experts, causal_lm.num_experts_per_tok, float(coefficient))
