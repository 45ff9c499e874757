"""Exact duplicates by digest; near duplicates by MinHash LSH, every candidate verified by exact Jaccard."""

import os
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from datasketch import LeanMinHash, MinHash, MinHashLSH

from services.ingest.pipeline.text import Keys, jaccard, shingle_hashes

Signature = npt.NDArray[np.uint32]

NUM_PERMUTATIONS = 128
SEED = 1
MIN_RECALL = 0.999
HASHED_AT_ONCE = 4096
MAX_VERIFIED = 512
"""Candidates compared for one row; a row with more is kept, and counted as not fully compared."""
CACHED_KEYS = 1 << 20

# The shingles are hashed before they come here.
EMPTY = MinHash(num_perm=NUM_PERMUTATIONS, seed=SEED, hashfunc=int)


def signature(text: str) -> Signature:
    """MinHash values over the text's character 5-grams. Shape (128,)."""
    shingles = (shingle_hashes(text) >> 32).tolist()
    minhash = EMPTY.copy()
    # In slices: each makes a matrix of (shingles, permutations).
    for start in range(0, len(shingles), HASHED_AT_ONCE):
        minhash.update_batch(shingles[start : start + HASHED_AT_ONCE])
    return np.asarray(minhash.hashvalues, np.uint32)


def bands_for(similarity: float) -> tuple[int, int]:
    """Bands and rows per band: the most selective choice that still finds 99.9 % of pairs at `similarity`."""
    for rows in range(NUM_PERMUTATIONS // 2, 1, -1):
        bands = NUM_PERMUTATIONS // rows
        if 1 - (1 - similarity**rows) ** bands >= MIN_RECALL:
            return bands, rows
    return NUM_PERMUTATIONS // 2, 2


@dataclass(frozen=True, slots=True)
class Kept:
    """A row that is in a file of this dataset already."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Match:
    kept: Kept
    similarity: float
    """1.0 for rows of equal digests."""
    is_exact: bool


class TextSpool:
    """Normalised texts of kept rows on disk, read back for verification."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._offsets = array("q", [0])
        self._keys: OrderedDict[int, Keys] = OrderedDict()
        self._cached = 0

    def add(self, text: str) -> None:
        content = text.encode()
        self._file.write(content)
        self._offsets.append(self._offsets[-1] + len(content))

    def keys(self, index: int) -> Keys:
        if index in self._keys:
            self._keys.move_to_end(index)
            return self._keys[index]
        start, end = self._offsets[index : index + 2]
        keys = shingle_hashes(os.pread(self._file.fileno(), end - start, start).decode())
        self._keys[index] = keys
        self._cached += len(keys)
        while self._cached > CACHED_KEYS and len(self._keys) > 1:
            self._cached -= len(self._keys.popitem(last=False)[1])
        return keys

    def close(self) -> None:
        self._file.close()


class DuplicateIndex:
    """The rows kept so far, over all files of a dataset. The earliest row of a group stays."""

    def __init__(self, spool: TextSpool, *, similarity: float) -> None:
        self.rows_not_fully_compared = 0
        self._spool = spool
        self._similarity = similarity
        self._rows: list[Kept] = []
        self._by_digest: dict[bytes, int] = {}
        self._lsh = MinHashLSH(num_perm=NUM_PERMUTATIONS, params=bands_for(similarity))

    def find(self, digest: bytes, values: Signature, text: str) -> Match | None:
        """The earliest kept row that this one repeats, exactly or nearly."""
        exact = self._by_digest.get(digest)
        if exact is not None:
            return Match(self._rows[exact], 1.0, is_exact=True)
        candidates = sorted(self._lsh.query(_lean(values)))
        if not candidates:
            return None
        self.rows_not_fully_compared += len(candidates) > MAX_VERIFIED
        keys = shingle_hashes(text)
        for index in candidates[:MAX_VERIFIED]:
            similarity = jaccard(keys, self._spool.keys(index))
            if similarity >= self._similarity:
                return Match(self._rows[index], similarity, is_exact=False)
        return None

    def add(self, kept: Kept, digest: bytes, values: Signature, text: str) -> None:
        index = len(self._rows)
        self._rows.append(kept)
        self._by_digest.setdefault(digest, index)
        self._lsh.insert(index, _lean(values), check_duplication=False)
        self._spool.add(text)


def _lean(values: Signature) -> LeanMinHash:
    return LeanMinHash(seed=SEED, hashvalues=values, scheme=EMPTY.scheme)
