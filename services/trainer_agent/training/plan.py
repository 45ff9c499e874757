"""One step's work, cut into micro batches of rows for every rank. Pure: numbers only, no tensors.

A row is what attention sees as one sequence of the batch: a whole window where packing holds, else one
example.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.trainer_agent.training.dataset import Example, Window

Row = tuple[Example, ...]
MicroBatch = tuple[Row, ...]


@dataclass(frozen=True)
class Layout:
    """How windows become rows."""

    packed: bool
    micro_batch_size: int
    """Windows per forward pass of one process."""
    max_seq_length: int


@dataclass(frozen=True)
class StepPlan:
    """What one step trains on, over all ranks."""

    windows: tuple[Window, ...]

    @property
    def batch_sha256(self) -> str:
        """Over the ids of its examples, in order."""
        return hashlib.sha256(_ids(self.windows)).hexdigest()

    @property
    def num_tokens(self) -> int:
        return sum(len(example.tokens) for window in self.windows for example in window)

    def micro_batches(self, layout: Layout, *, rank: int, world_size: int) -> tuple[MicroBatch, ...]:
        """The share of one rank. Every rank has equally many, because sharded weights are gathered by all
        ranks at once; the missing ones are empty.
        """
        shares = [rows_of(self.windows[r::world_size], layout) for r in range(world_size)]
        missing = max(len(share) for share in shares) - len(shares[rank])
        return (*shares[rank], *((),) * missing)


def rows_of(windows: Sequence[Window], layout: Layout) -> tuple[MicroBatch, ...]:
    if layout.packed:
        size = layout.micro_batch_size
        return tuple(tuple(windows[start : start + size]) for start in range(0, len(windows), size))
    examples = sorted((example for window in windows for example in window), key=lambda e: -len(e.tokens))
    return _by_padded_size(examples, layout.micro_batch_size * layout.max_seq_length)


def _by_padded_size(examples: Sequence[Example], most_tokens: int) -> tuple[MicroBatch, ...]:
    """Groups of one-example rows that hold at most so many tokens once padded to their first, longest row."""
    groups: list[list[Row]] = []
    for example in examples:
        if groups and (len(groups[-1]) + 1) * len(groups[-1][0][0].tokens) <= most_tokens:
            groups[-1].append((example,))
        else:
            groups.append([(example,)])
    return tuple(tuple(group) for group in groups)


def chain_of(batches: Iterable[Sequence[int]], windows: Sequence[Window]) -> str:
    """The digest of these batches, each of windows by their index."""
    ids: dict[int, bytes] = {}
    digest = ""
    for batch in batches:
        for index in batch:
            if index not in ids:
                ids[index] = _ids((windows[index],))
        digest = chain(digest, hashlib.sha256(b"".join(ids[index] for index in batch)).hexdigest())
    return digest


def _ids(windows: Iterable[Window]) -> bytes:
    """Of their examples, in order."""
    return np.array([example.id for window in windows for example in window], dtype="<i8").tobytes()


def chain(digest: str, batch_sha256: str) -> str:
    """The digest of all batches consumed, one more included. Starts from the empty string."""
    return hashlib.sha256(f"{digest}{batch_sha256}".encode()).hexdigest()
