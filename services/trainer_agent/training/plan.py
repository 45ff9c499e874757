"""One step's work, cut into micro batches of rows for every rank. Pure: numbers only, no tensors.

A row is what attention sees as one sequence of the batch: a whole window where packing holds, else one
example.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.artifacts import REJECTED
from services.trainer_agent.training.dataset import Example, Window, Windows

Row = tuple[Example, ...]
MicroBatch = tuple[Row, ...]
ID = np.dtype("<i8")
"""Form of an example's id in a digest."""


@dataclass(frozen=True)
class Layout:
    """How windows become rows."""

    packed: bool
    micro_batch_size: int
    """Number of windows per forward pass of one process."""
    max_seq_length: int


@dataclass(frozen=True)
class StepPlan:
    """What one step trains on, over all ranks."""

    windows: tuple[Window, ...]

    @property
    def batch_sha256(self) -> str:
        """Digest over the ids of the batch's examples, in order."""
        ids = [example.id for window in self.windows for example in window]
        return hashlib.sha256(np.array(ids, dtype=ID).tobytes()).hexdigest()

    @property
    def num_tokens(self) -> int:
        return sum(len(example.tokens) for window in self.windows for example in window)

    def micro_batches(self, layout: Layout, *, rank: int, world_size: int) -> tuple[MicroBatch, ...]:
        """Return the share of one rank. Every rank has equally many, because sharded weights are gathered by all
        ranks at once; the missing ones are empty."""
        shares = [rows_of(self.windows[r::world_size], layout) for r in range(world_size)]
        missing = max(len(share) for share in shares) - len(shares[rank])
        return (*shares[rank], *((),) * missing)


def rows_of(windows: Sequence[Window], layout: Layout) -> tuple[MicroBatch, ...]:
    if layout.packed:
        size = layout.micro_batch_size
        return tuple(tuple(windows[start : start + size]) for start in range(0, len(windows), size))
    return _by_padded_size(_units(windows), layout.micro_batch_size * layout.max_seq_length)


def examples_of(micro_batch: MicroBatch) -> tuple[Example, ...]:
    """Return the examples in the order of their losses; of a preference row the chosen one, then the rejected."""
    return tuple(example for row in micro_batch for example in row)


def _units(windows: Iterable[Window]) -> list[tuple[Example, ...]]:
    """Return what must be in one micro batch: an example, or the two of a preference row."""
    units: list[tuple[Example, ...]] = []
    for window in windows:
        for index, example in enumerate(window):
            if index and example.side == REJECTED:
                units[-1] = (*units[-1], example)
            else:
                units.append((example,))
    return units


def _by_padded_size(units: Iterable[tuple[Example, ...]], most_tokens: int) -> tuple[MicroBatch, ...]:
    """Return groups of one-example rows of at most so many tokens once padded to their longest, or of one unit."""
    groups: list[list[Row]] = []
    longest = 0
    for unit in sorted(units, key=lambda unit: -_longest(unit)):
        rows: list[Row] = [(example,) for example in unit]
        if groups and (len(groups[-1]) + len(rows)) * longest <= most_tokens:
            groups[-1] += rows
        else:
            groups.append(rows)
            longest = _longest(unit)
    return tuple(tuple(group) for group in groups)


def _longest(unit: Sequence[Example]) -> int:
    return max(len(example.tokens) for example in unit)


def chain_of(batches: Iterable[Sequence[int]], windows: Windows) -> str:
    """Return the digest of these batches, each of windows by their index. Reads no tokens."""
    ids: dict[int, bytes] = {}
    digest = ""
    for batch in batches:
        for index in batch:
            if index not in ids:
                ids[index] = windows.example_ids(index).astype(ID).tobytes()
        digest = chain(digest, hashlib.sha256(b"".join(ids[index] for index in batch)).hexdigest())
    return digest


def chain(digest: str, batch_sha256: str) -> str:
    """Return the digest of all batches consumed, one more included. It starts from the empty string."""
    return hashlib.sha256(f"{digest}{batch_sha256}".encode()).hexdigest()
