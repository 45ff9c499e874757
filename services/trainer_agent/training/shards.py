"""Which rank writes which trained tensors of a bundle's model, and into which file."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from services.trainer_agent.training.slices import Shapes


@dataclass(frozen=True)
class Shard:
    """One of the files that a model's weights are in."""

    path: str
    names: frozenset[str]
    """Names of the trained tensors in it."""


Shards = Mapping[int, Shard]
"""The shard that each rank writes; a rank without one writes none."""
NO_SHARDS: Shards = {}


def shards_of(trained: Shapes, path: str, *, num_writers: int) -> Shards:
    """Share the tensors out by size, in their order. `path` is where they are if one rank writes them all."""
    total, before = sum(map(math.prod, trained.values())), 0
    names: dict[int, list[str]] = defaultdict(list)
    for name, shape in trained.items():
        names[before * num_writers // total].append(name)
        before += math.prod(shape)
    paths = [path] if len(names) == 1 else [_numbered(path, each, len(names)) for each in range(len(names))]
    return {rank: Shard(file, frozenset(names[rank])) for rank, file in zip(names, paths, strict=True)}


def _numbered(path: str, index: int, number: int) -> str:
    """Return the name that transformers gives one of several files."""
    stem, _, suffix = path.rpartition(".")
    return f"{stem}-{index + 1:05d}-of-{number:05d}.{suffix}"
