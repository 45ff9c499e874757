"""Which part of a tensor a rank holds, and what two such parts have in common."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from schemas.base import Value

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of whole tensors, by their name in the model file."""


class Slice(Value):
    """A block of a tensor: where it begins and how far it reaches in each dimension. With one offset for a tensor of
    several dimensions it is a range of its values in order, which is how ZeRO cuts.
    """

    tensor: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


def whole_slice(name: str, tensor: Tensor) -> Slice:
    return Slice(tensor=name, offsets=(0,) * tensor.ndim, shape=tuple(tensor.shape))


def slice_of(name: str, tensor: Tensor) -> Slice:
    """Return the block of a sharded tensor that this rank holds, or the whole of one that is not sharded."""
    if not isinstance(tensor, DTensor):
        return whole_slice(name, tensor)
    shape, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return Slice(tensor=name, offsets=tuple(offsets), shape=tuple(shape))


def overlap(one: Slice, other: Slice) -> Slice | None:
    """Return what two blocks of one tensor have in common. Both must be cut in the same way."""
    first = tuple(max(a, b) for a, b in zip(one.offsets, other.offsets, strict=True))
    ends = zip(one.offsets, one.shape, other.offsets, other.shape, strict=True)
    shape = tuple(min(a + n, b + m) - o for (a, n, b, m), o in zip(ends, first, strict=True))
    return Slice(tensor=one.tensor, offsets=first, shape=shape) if all(n > 0 for n in shape) else None


def index_of(part: Slice, within: Slice) -> tuple[slice, ...]:
    """Return where a part of a block is in a tensor that holds the block."""
    sizes = zip(part.offsets, part.shape, within.offsets, strict=True)
    return tuple(slice(a - o, a - o + n) for a, n, o in sizes)


def read_slice(file: Any, here: Slice) -> Tensor:
    """Read the slice of a tensor from an opened safetensors file."""
    stored = file.get_slice(here.tensor)
    if len(here.offsets) != len(stored.get_shape()):
        [start], [length] = here.offsets, here.shape
        return torch.flatten(stored[:])[start : start + length]
    block: Tensor = stored[tuple(slice(o, o + n) for o, n in zip(here.offsets, here.shape, strict=True))]
    return block
