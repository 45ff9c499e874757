"""Micro batches as tensors."""

# ruff: noqa: N815 shapes are part of tensors' names
# B = rows, T = tokens of the longest row, K = loss positions of the micro batch, N = examples and paddings, plus one
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from services.trainer_agent.training.plan import MicroBatch


@dataclass(frozen=True)
class Inputs:
    tokens_BT: Tensor
    positions_BT: Tensor
    """Positions that restart at 0 with every example, and with the padding behind the last one: attention with a mask
    reads the borders of the examples from them alone."""
    is_token_BT: Tensor
    """Booleans, False where a row is padded behind its last example."""
    borders_N: Tensor
    """Index at which each example or padding begins among the B * T tokens, and their number, in int32. For attention
    without a mask."""
    longest: int
    """Largest number of tokens between two borders."""
    sources_K: Tensor
    """Indices into the B * T positions whose hidden state predicts a target."""
    targets_K: Tensor


def inputs_of(micro_batch: MicroBatch, device: torch.device) -> Inputs:
    """Return the inputs. An empty micro batch becomes one token without a target: every rank has something to run,
    and a loss of routers, so that passes go through the same modules on each."""
    width = max((sum(len(example.tokens) for example in row) for row in micro_batch), default=0) or 1
    height = len(micro_batch) or 1
    tokens = torch.zeros(height, width, dtype=torch.int64)
    positions = torch.arange(width).repeat(height, 1)
    is_token = torch.full((height, width), not micro_batch)
    sources, targets, borders = [], [], [0]
    for row_number, row in enumerate(micro_batch):
        start = 0
        for example in row:
            end = start + len(example.tokens)
            indices = torch.from_numpy(example.targets)
            tokens[row_number, start:end] = torch.from_numpy(example.tokens)
            positions[row_number, start:] = torch.arange(width - start)
            sources.append(row_number * width + start + indices - 1)
            targets.append(tokens[row_number, start + indices])
            borders.append(row_number * width + end)
            start = end
        positions[row_number, start:] = torch.arange(width - start)
        is_token[row_number, :start] = True
        borders.append((row_number + 1) * width)
    borders = sorted({*borders, height * width})
    return Inputs(
        tokens_BT=tokens.to(device),
        positions_BT=positions.to(device),
        is_token_BT=is_token.to(device),
        borders_N=torch.tensor(borders, dtype=torch.int32, device=device),
        longest=max(end - start for start, end in pairwise(borders)),
        sources_K=_joined(sources).to(device),
        targets_K=_joined(targets).to(device),
    )


def _joined(pieces: list[Tensor]) -> Tensor:
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64)
