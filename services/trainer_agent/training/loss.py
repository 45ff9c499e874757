"""The loss of the positions that have a target, without logits of all the others."""

# ruff: noqa: N803, N806 shapes are part of tensors' names
# B = rows, T = tokens per row, H = hidden size, V = vocabulary, K = loss positions
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from schemas.capabilities import LossForm
from services.trainer_agent.training.attention import WITH_BORDERS, borders_of
from services.trainer_agent.training.balance import balance_of
from services.trainer_agent.training.places import Places
from services.trainer_agent.training.quantized import keep_in_train_mode
from services.trainer_agent.training.tensors import Inputs
from shared.causal_models import attention_of, loss_form

LOGITS_PER_CHUNK = 2**26
"""Number of float32 logits that exist at a time: 256 MiB."""


class TokenLosses(nn.Module):
    """A causal language model that answers with losses. It is the root that sharding wraps, head included."""

    def __init__(self, model: Any, *, compute_dtype: torch.dtype, unread: Places | None = None) -> None:
        super().__init__()
        self.model = model
        self.unread = unread or {}
        """Places in the files of parameters that are to be read once they are sharded."""
        self.compute_dtype = compute_dtype
        self.form = loss_form(self.causal_lm.config)
        self.balance = balance_of(model) if model is self.causal_lm else None
        """Loss of the routers; None where they are not trained: beside an adapter they are frozen."""
        self._router_loss: Tensor | None = None
        self.highest_over_ranks: Callable[[int], int] = int
        """Returns the highest of all ranks' numbers where they must call the head equally often, else the own."""

    @property
    def causal_lm(self) -> Any:
        """Model itself, with adapters in place."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def attention(self) -> str:
        """Name of the attention in transformers."""
        return str(self.causal_lm.config._attn_implementation)  # noqa: SLF001 transformers has no public name for it

    def use_masks(self) -> None:
        """Attend with a mask from now on: it works on any device and with any family."""
        self.causal_lm.set_attn_implementation(attention_of(self.causal_lm.config))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        keep_in_train_mode(self)
        return self

    def forward(self, inputs: Inputs) -> Tensor:
        """Return the negative log-likelihood of each target, (K,) in float32.

        With gradients it also leaves the loss of the routers, which `take_router_loss` hands over.
        """
        balance = self.balance if torch.is_grad_enabled() else None
        with self._autocast(inputs.tokens_BT):
            # A cache or a mask here would switch the borders between packed examples off, silently.
            output = self.causal_lm.base_model(
                input_ids=inputs.tokens_BT,
                position_ids=inputs.positions_BT,
                use_cache=False,
                **(borders_of(inputs) if self.attention in WITH_BORDERS else {}),
                **({"output_router_logits": True} if balance else {}),
            )
            self._router_loss = balance.loss(output.router_logits, inputs.is_token_BT) if balance else None
            hidden_KH = output.last_hidden_state.flatten(0, 1).index_select(0, inputs.sources_K)
            return self._in_chunks(hidden_KH, inputs.targets_K)

    def take_router_loss(self) -> Tensor | None:
        """Return the router loss of the newest forward pass; None where there is none to add."""
        loss, self._router_loss = self._router_loss, None
        return loss

    def whole_logits_losses(self, tokens_T: Tensor) -> Tensor:
        """Return the reference: losses of all tokens but the first, by the model's own forward pass over a sequence.

        Returns: (T - 1,) float32.
        """
        with self._autocast(tokens_T):
            logits = self.model(input_ids=tokens_T[None], use_cache=False).logits[0, :-1]
            return cross_entropy(logits.float(), tokens_T[1:], reduction="none")

    def _in_chunks(self, hidden_KH: Tensor, targets_K: Tensor) -> Tensor:
        head = self.causal_lm.get_output_embeddings()
        size = max(1, LOGITS_PER_CHUNK // self.causal_lm.config.get_text_config().vocab_size)
        num_chunks = self.highest_over_ranks(ceil(len(targets_K) / size))
        if num_chunks <= 1:
            return _losses(head, self.form, hidden_KH, targets_K)
        if hidden_KH.requires_grad and not any(each.requires_grad for each in head.parameters()):
            return _OfFrozenHead.apply(hidden_KH, targets_K, head, self.form, size, num_chunks)  # type: ignore[no-any-return, no-untyped-call]
        pieces = _chunks(hidden_KH, targets_K, size, num_chunks)
        # Recomputed in the backward pass, else all chunks' logits would be kept for it.
        return torch.cat(
            [checkpoint(_losses, head, self.form, *piece, use_reentrant=False) for piece in pieces]
        )

    def _autocast(self, tokens: Tensor) -> torch.autocast:
        reduced = self.compute_dtype is not torch.float32
        return torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=reduced)


class _OfFrozenHead(torch.autograd.Function):
    """Losses behind a head that is not trained. A loss depends on its own hidden state alone, so its gradient is
    computed too while a chunk's logits are there; the backward pass scales it, and computes no logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_KH: Tensor,
        targets_K: Tensor,
        head: nn.Module,
        form: LossForm,
        size: int,
        num_chunks: int,
    ) -> Tensor:
        losses: list[Tensor] = []
        gradients: list[Tensor] = []
        for hidden, targets in _chunks(hidden_KH, targets_K, size, num_chunks):
            with torch.enable_grad():
                own = hidden.detach().requires_grad_()
                each = _losses(head, form, own, targets)
                gradients += torch.autograd.grad(each.sum(), own)
            losses.append(each.detach())
        ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        [gradient_KH] = ctx.saved_tensors
        scaled = gradient_KH * upstream[0][:, None].to(gradient_KH.dtype)
        return scaled, None, None, None, None, None


def _chunks(
    hidden_KH: Tensor, targets_K: Tensor, size: int, num_chunks: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return positions in pieces of `size`; pieces behind the last position are empty."""
    hidden, targets = torch.split(hidden_KH, size), torch.split(targets_K, size)
    missing = num_chunks - len(targets)
    return zip((*hidden, *(hidden_KH[:0],) * missing), (*targets, *(targets_K[:0],) * missing), strict=True)


def _losses(head: nn.Module, form: LossForm, hidden_KH: Tensor, targets_K: Tensor) -> Tensor:
    return cross_entropy(_shaped(head(hidden_KH).float(), form), targets_K, reduction="none")


def _shaped(logits_KV: Tensor, form: LossForm) -> Tensor:
    if form.scale != 1.0:
        logits_KV = logits_KV * form.scale
    return logits_KV if form.soft_cap is None else torch.tanh(logits_KV / form.soft_cap) * form.soft_cap


@contextmanager
def head_in_float32(network: TokenLosses) -> Iterator[None]:
    """Compute logits without rounding of their own, for checks: differences come from before the head or its form."""
    head = network.causal_lm.get_output_embeddings()
    # An adapter on the head itself computes more than one product.
    if network.compute_dtype is torch.float32 or type(head) is not nn.Linear:
        yield
        return
    head.forward = partial(_in_float32, head)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del head.forward


def _in_float32(head: nn.Linear, hidden: Tensor) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        return linear(hidden.float(), head.weight.float(), None if head.bias is None else head.bias.float())
