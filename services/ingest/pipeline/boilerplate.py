"""Which grams occur in so many rows of a file that they are evidence of nothing: templates, instructions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.ingest.pipeline.text import NO_KEYS, Keys, indices_in

FEW_ROWS = 10
FEWEST_ROWS = 4
FREQUENT_SHARE = 100
MAX_GRAMS = 1 << 23
BUFFERED_GRAMS = 1 << 21

Counts = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Common:
    """What the files of a dataset have in common."""

    boilerplate: Keys
    """Character 5-grams of prompts that occur in so many rows of a file that they do not distinguish rows; sorted."""
    repeated: Keys
    """Keys (system turns and answers) that two different rows have, sorted: only such can be near duplicates."""


def frequent_above(rows: int) -> int:
    """Return the number of rows above which a gram is boilerplate: 10, or 1 % of the rows of its file.

    In a file of fewer than 20 rows it is half of the rows, at least 4.
    """
    return max(FEWEST_ROWS, min(FEW_ROWS, rows // 2), rows // FREQUENT_SHARE)


class GramCounter:
    """Counts in how many rows each gram occurs. Exact up to `max_grams` different ones (12 bytes each).

    Above that the rarest are given up, so that a count is at most `undercount` too low. Deterministic: it depends on
    the order of the rows alone.
    """

    def __init__(self, max_grams: int = MAX_GRAMS) -> None:
        self.undercount = 0
        self._max_grams = max_grams
        self._keys: Keys = NO_KEYS
        self._counts: Counts = np.empty(0, np.uint32)
        self._buffer: list[Keys] = []
        self._buffered = 0

    def add(self, row: Keys) -> None:
        """Count one row by the set of its grams."""
        self._buffer.append(row)
        self._buffered += len(row)
        if self._buffered >= BUFFERED_GRAMS:
            self._merge()

    def frequent(self, above: int) -> Keys:
        """Return the grams of more rows than `above`, sorted."""
        self._merge()
        return self._keys[self._counts > above]

    def _merge(self) -> None:
        if not self._buffer:
            return
        keys, counts = runs(np.concatenate(self._buffer))
        self._buffer, self._buffered = [], 0
        indices = indices_in(self._keys, keys)
        is_known = indices >= 0
        self._counts[indices[is_known]] += counts[is_known]
        all_keys = np.concatenate([self._keys, keys[~is_known]])
        # Two sorted runs, which a stable sort merges.
        order = np.argsort(all_keys, kind="stable")
        self._keys = all_keys[order]
        self._counts = np.concatenate([self._counts, counts[~is_known]])[order]
        if len(self._keys) > self._max_grams:
            self._give_up_the_rarest()

    def _give_up_the_rarest(self) -> None:
        rank = len(self._counts) - self._max_grams // 2
        highest_lost = int(np.partition(self._counts, rank)[rank])
        is_kept = self._counts > highest_lost
        self._keys, self._counts = self._keys[is_kept], self._counts[is_kept]
        self.undercount += highest_lost


def runs(keys: Keys) -> tuple[Keys, Counts]:
    """Return each different key once, sorted, and how many times it occurs."""
    ordered: Keys = np.sort(keys)
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return ordered[starts], np.diff(np.append(starts, len(ordered))).astype(np.uint32)
