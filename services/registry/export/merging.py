"""Merge an adapter into the weights of its base model, a few rows of one matrix at a time.

O = output features, I = input features, R = LoRA rank
"""

# ruff: noqa: N803, N815 shapes are part of tensors' names
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from shared.model_files.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from shared.model_files.documents import read_object
from shared.model_files.models import WEIGHTS_SUFFIX
from shared.model_files.tensors import byte_ranges

CHUNK_VALUES = 16 * 1024 * 1024
"""Values of a matrix that are in memory in float32 at once."""
MERGED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Advance = Callable[[int], None]
"""A function that is called with the number of bytes that were written since the last call."""


class NotExportable(Exception):
    """The version cannot be written in this format."""


@dataclass(frozen=True)
class Pair:
    """The two matrices that an adapter adds to a weight, and the factor of their product."""

    a_RI: Tensor
    b_OR: Tensor
    scale: float

    def merged_rows(self, weight_OI: Any, start: int, stop: int) -> Tensor:
        """Return W + scale * B A for some rows, in float32. `weight_OI`: a slice of a file, or a tensor."""
        base: Tensor = weight_OI[start:stop].float()
        return base + self.scale * (self.b_OR[start:stop] @ self.a_RI)


def read_pairs(directory: Path) -> dict[str, Pair]:
    """Return the pair for each weight of the base model that the adapter changes. It is a checked, plain LoRA."""
    config = read_object(directory / ADAPTER_CONFIG)
    rank, alpha = config["r"], config["lora_alpha"]
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    pairs = {}
    with safe_open(directory / ADAPTER_WEIGHTS, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 the file is no mapping
            module, is_first, _ = name.removeprefix("base_model.model.").partition(".lora_A.weight")
            if is_first:
                second = name.replace(".lora_A.", ".lora_B.")
                pairs[f"{module}.weight"] = Pair(
                    file.get_tensor(name).float(), file.get_tensor(second).float(), scale
                )
    return pairs


class Weights:
    """The tensors of a model's files, with an adapter merged into them as they are read."""

    def __init__(self, directory: Path, pairs: Mapping[str, Pair]) -> None:
        self._files: dict[str, Path] = {}
        self._pairs = pairs
        for path in sorted(directory.glob(f"*{WEIGHTS_SUFFIX}")):
            with safe_open(path, framework="pt") as file:
                self._files |= dict.fromkeys(file.keys(), path)

    def names(self) -> list[str]:
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        with safe_open(self._files[name], framework="pt") as file:
            return tuple(file.get_slice(name).get_shape())

    def rows(self, name: str) -> Iterator[Tensor]:
        """Yield the tensor's rows in float32, in chunks; a tensor of one dimension whole."""
        with safe_open(self._files[name], framework="pt") as file:
            piece = file.get_slice(name)
            shape = piece.get_shape()
            if len(shape) < 2:
                yield file.get_tensor(name).float()
                return
            pair = self._pairs.get(name)
            for start, stop in _chunks(shape):
                yield pair.merged_rows(piece, start, stop) if pair else piece[start:stop].float()


def write_merged(base: Path, pairs: Mapping[str, Pair], out: Path, advance: Advance) -> None:
    """Write the base model's files with the adapter merged: what it does not change stays byte for byte.

    A product is added in float32 and rounded once, to the type of the weight. Raises NotExportable.
    """
    unmerged = set(pairs)
    for path in sorted(base.glob(f"*{WEIGHTS_SUFFIX}")):
        target = out / path.name
        shutil.copyfile(path, target)
        ranges = byte_ranges(target)
        with safe_open(path, framework="pt") as file, target.open("r+b") as written:
            for name in sorted(unmerged & ranges.keys(), key=lambda each: ranges[each]):
                written.seek(ranges[name][0])
                for rows in merged_chunks(file.get_slice(name), pairs[name], name):
                    written.write(rows.contiguous().view(torch.uint8).numpy().tobytes())
        unmerged -= ranges.keys()
        advance(target.stat().st_size)
    if unmerged:
        raise NotExportable(f"the base model's files have no {min(unmerged)}, which the adapter changes")


def merged_chunks(piece: Any, pair: Pair, name: str) -> Iterator[Tensor]:
    for start, stop in _chunks(piece.get_shape()):
        dtype = piece[start : start + 1].dtype
        if dtype not in MERGED_DTYPES:
            raise NotExportable(f"{name} is {dtype}; an adapter is merged into 16 or 32 bit weights")
        yield pair.merged_rows(piece, start, stop).to(dtype)


def _chunks(shape: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first row and the one behind the last of each chunk."""
    rows = max(1, CHUNK_VALUES // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], rows):
        yield start, min(start + rows, shape[0])
