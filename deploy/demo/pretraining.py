"""Training a small language model from nothing, in the minutes that a demo has."""

# ruff: noqa: N806, N815 shapes are part of tensors' names
# N = rows, B = rows of a step, T = tokens of a row, H = hidden size
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer

from deploy.demo.muon import Muon

EVALUATED_ROWS = 128
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class PretrainingSettings:
    train_tokens: int = 1_300_000
    row_tokens: int = 256
    rows_per_step: int = 8
    matrix_rate: float = 0.012
    """Peak rate of Muon, for the matrices of the layers."""
    other_rate: float = 0.006
    """Peak rate of AdamW, for the embedding and the norms."""
    warmup_ratio: float = 0.04
    decay_share: float = 0.7
    max_grad_norm: float = 1.0
    precision: Precision = "float32"
    """Precision of the forward and backward passes. Never chosen by what the CPU can: it decides the weights."""
    seed: int = 0
    threads: int = 2
    """Fixed, because the number of threads decides how sums are rounded."""


@dataclass(frozen=True)
class Rows:
    """Documents one after another; from their positions, which restart, attention sees where one ends."""

    tokens_NT: Tensor
    positions_NT: Tensor

    def __len__(self) -> int:
        return len(self.tokens_NT)

    def __getitem__(self, indices: Tensor | slice) -> "Rows":
        return Rows(self.tokens_NT[indices], self.positions_NT[indices])

    def in_batches(self, size: int) -> "list[Rows]":
        return [self[slice(start, start + size)] for start in range(0, len(self), size)]


@dataclass(frozen=True)
class Step:
    number: int
    num_steps: int
    loss: float
    tokens_per_second: float
    seconds_left: float


def pretrain(model: Any, rows: Rows, settings: PretrainingSettings, report: Callable[[Step], None]) -> None:
    """Train `model` once on all rows. Equal arguments give equal weights on the same machine."""
    model.train()
    optimizers = _optimizers(model, settings)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    batches = _batches(rows, settings)
    started = time.monotonic()
    for index, batch in enumerate(batches):
        share = _rate_share(index, len(batches), settings)
        for optimizer, rates in zip(optimizers, peaks, strict=True):
            _set_rates(optimizer, rates, share)
        loss = _next_token_loss(model, batch, settings.precision)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        report(_step(index + 1, len(batches), float(loss.detach()), batch.tokens_NT.numel(), started))


@torch.inference_mode()
def held_out_loss(model: Any, rows: Rows) -> float:
    """Mean negative log-likelihood of a next token in nats, over some rows spread over all."""
    model.eval()
    indices = torch.linspace(0, len(rows) - 1, min(len(rows), EVALUATED_ROWS)).long()
    batches = rows[indices].in_batches(8)
    return sum(float(_next_token_loss(model, batch)) * len(batch) for batch in batches) / len(indices)


def rows_of(documents: Sequence[Sequence[int]], *, row_tokens: int) -> Rows:
    """Put all documents one after another and cut them into rows; the rest of less than a row is left out."""
    tokens = torch.tensor([token for document in documents for token in document])
    positions = torch.tensor([position for document in documents for position in range(len(document))])
    num_rows = len(tokens) // row_tokens
    shape = (num_rows, row_tokens)
    tokens_NT = tokens[: num_rows * row_tokens].view(shape)
    return Rows(tokens_NT, positions[: num_rows * row_tokens].view(shape))


def _next_token_loss(model: Any, rows: Rows, precision: Precision = "float32") -> Tensor:
    """Mean over all tokens that follow another of their document."""
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        # A cache would switch the borders between documents off, silently.
        hidden_BTH = model.model(
            input_ids=rows.tokens_NT, position_ids=rows.positions_NT, use_cache=False
        ).last_hidden_state
        follows_BT = rows.positions_NT[:, 1:] > 0
        logits = model.lm_head(hidden_BTH[:, :-1][follows_BT])
    return cross_entropy(logits.float(), rows.tokens_NT[:, 1:][follows_BT])


def _optimizers(model: Any, settings: PretrainingSettings) -> tuple[Optimizer, ...]:
    """Muon learns from a third of the tokens that AdamW needs here, but only knows matrices."""
    layers = list(model.model.layers.parameters())
    matrices = [parameter for parameter in layers if parameter.ndim == 2]
    known = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return (
        Muon(matrices, lr=settings.matrix_rate),
        AdamW(others, lr=settings.other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    )


def _batches(rows: Rows, settings: PretrainingSettings) -> list[Rows]:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(settings.seed))
    return rows[order].in_batches(settings.rows_per_step)


def _rate_share(index: int, num_steps: int, settings: PretrainingSettings) -> float:
    """Share of the peak rate: a linear rise, the peak, a linear fall to near zero."""
    rise = (index + 1) / max(1.0, settings.warmup_ratio * num_steps)
    fall = (num_steps - index) / max(1.0, settings.decay_share * num_steps)
    return min(1.0, rise, max(0.02, fall))


def _set_rates(optimizer: Optimizer, rates: Sequence[float], share: float) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * share


def _step(number: int, num_steps: int, loss: float, tokens_per_step: int, started: float) -> Step:
    seconds = time.monotonic() - started
    return Step(
        number=number,
        num_steps=num_steps,
        loss=loss,
        tokens_per_second=number * tokens_per_step / seconds,
        seconds_left=seconds / number * (num_steps - number),
    )
