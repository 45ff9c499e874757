"""Exact duplicates by digest; near duplicates by MinHash bands, every candidate verified by exact Jaccard.

Near duplicates have equal answers, equal system turns and prompts whose character 5-grams, boilerplate left out, are
alike. A prompt of which too little is left is compared as a whole only, as an exact duplicate.
"""

import os
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasketch import MinHash

from services.ingest.pipeline.boilerplate import Common
from services.ingest.pipeline.text import (
    WEIGHTS,
    Keys,
    RowText,
    indices_in,
    jaccard,
    odd_numbers,
    shingle_hashes,
    without,
)

NUM_PERMUTATIONS = 64
MIN_RECALL = 0.999
MIN_SHINGLES = 20
HASHED_AT_ONCE = 4096
MAX_VERIFIED = 512
"""Number of candidates looked at for one row; a row with more is kept, and counted as not fully compared."""
CACHED_KEYS = 1 << 20

HALF = np.uint64(32)
MULTIPLIERS = odd_numbers(NUM_PERMUTATIONS, salt="multiply")
# The shingles are hashed before they come here.
EMPTY = MinHash(num_perm=NUM_PERMUTATIONS, seed=1, hashfunc=int)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Values of a row by which rows that are like it are found."""

    key: int
    prompt: str
    num_shingles: int
    bands: tuple[int, ...]


def fingerprint_of(row: RowText, common: Common, *, similarity: float) -> Fingerprint | None:
    """Return the fingerprint of a row; None for one that no other can be like: its answers are its own, or its prompt
    is all boilerplate."""
    if indices_in(common.repeated, np.array([row.key], np.uint64))[0] < 0:
        return None
    shingles = own_shingles(row.prompt, common)
    if len(shingles) < MIN_SHINGLES:
        return None
    bands = band_keys(shingles, row.key, similarity=similarity)
    return Fingerprint(row.key, row.prompt, len(shingles), bands)


def own_shingles(prompt: str, common: Common) -> Keys:
    return without(shingle_hashes(prompt), common.boilerplate)


def band_keys(shingles: Keys, key: int, *, similarity: float) -> tuple[int, ...]:
    """Return hashes of the set's bands of MinHash values: sets as similar as that share one, if their key is
    equal."""
    bands, width = bands_for(similarity)
    count = bands * width
    hashes = (shingles >> HALF).tolist()
    minhash = EMPTY.copy()
    # In slices: each makes a matrix of (shingles, permutations).
    for start in range(0, len(hashes), HASHED_AT_ONCE):
        minhash.update_batch(hashes[start : start + HASHED_AT_ONCE])
    lowest = np.asarray(minhash.hashvalues[:count], np.uint64)
    band = np.arange(bands, dtype=np.uint64)
    own = np.array([key], np.uint64) * WEIGHTS[1] + band * WEIGHTS[0]
    keys = lowest.reshape(bands, width) @ MULTIPLIERS[:width] + own
    return tuple(keys.tolist())


def bands_for(similarity: float) -> tuple[int, int]:
    """Return bands and rows per band: the most selective choice that still finds 99.9 % of pairs at `similarity`."""
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
    """Jaccard similarity of the prompts; 1.0 for rows of equal digests."""
    is_exact: bool


class PromptSpool:
    """Prompts of kept rows on disk, read back for verification."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._offsets = array("q", [0])

    def add(self, text: str) -> None:
        content = text.encode()
        self._file.write(content)
        self._offsets.append(self._offsets[-1] + len(content))

    def get(self, index: int) -> str:
        start, end = self._offsets[index : index + 2]
        return os.pread(self._file.fileno(), end - start, start).decode()

    def close(self) -> None:
        self._file.close()


class DuplicateIndex:
    """The rows kept so far, over all files of a dataset. The earliest row of a group stays."""

    def __init__(self, spool: PromptSpool, common: Common, *, similarity: float) -> None:
        self.rows_not_fully_compared = 0
        self._spool = spool
        self._common = common
        self._similarity = similarity
        self._by_digest: dict[bytes, Kept] = {}
        self._rows: list[Kept] = []
        self._keys = array("Q")
        self._num_shingles = array("L")
        self._by_band: dict[int, int | list[int]] = {}
        self._cache: OrderedDict[int, Keys] = OrderedDict()
        self._cached = 0

    def find(self, digest: bytes, own: Fingerprint | None) -> Match | None:
        """The earliest kept row that this one repeats, exactly or nearly."""
        exact = self._by_digest.get(digest)
        if exact is not None:
            return Match(exact, 1.0, is_exact=True)
        return self._find_near(own) if own is not None else None

    def add(self, kept: Kept, digest: bytes, own: Fingerprint | None) -> None:
        self._by_digest.setdefault(digest, kept)
        if own is None:
            return
        index = len(self._rows)
        self._rows.append(kept)
        self._keys.append(own.key)
        self._num_shingles.append(own.num_shingles)
        self._spool.add(own.prompt)
        for band in own.bands:
            self._add_to_band(band, index)

    def _add_to_band(self, band: int, index: int) -> None:
        others = self._by_band.get(band)
        if others is None:
            self._by_band[band] = index
        elif isinstance(others, int):
            self._by_band[band] = [others, index]
        elif len(others) <= MAX_VERIFIED:
            others.append(index)

    def _find_near(self, own: Fingerprint) -> Match | None:
        candidates = self._candidates(own)
        shingles: Keys | None = None
        for index in candidates[:MAX_VERIFIED]:
            shingles = own_shingles(own.prompt, self._common) if shingles is None else shingles
            similarity = jaccard(shingles, self._shingles(index))
            if similarity >= self._similarity:
                return Match(self._rows[index], similarity, is_exact=False)
        self.rows_not_fully_compared += len(candidates) > MAX_VERIFIED
        return None

    def _candidates(self, own: Fingerprint) -> list[int]:
        """Rows that share a band, earliest first; at most MAX_VERIFIED + 1 of each band."""
        indices: set[int] = set()
        for band in own.bands:
            others = self._by_band.get(band)
            if isinstance(others, int):
                indices.add(others)
            elif others is not None:
                indices.update(others)
        return sorted(index for index in indices if self._may_be_alike(own, index))

    def _may_be_alike(self, own: Fingerprint, index: int) -> bool:
        smaller, larger = sorted((own.num_shingles, self._num_shingles[index]))
        return self._keys[index] == own.key and smaller >= self._similarity * larger

    def _shingles(self, index: int) -> Keys:
        if index in self._cache:
            self._cache.move_to_end(index)
            return self._cache[index]
        keys = own_shingles(self._spool.get(index), self._common)
        self._cache[index] = keys
        self._cached += len(keys)
        while self._cached > CACHED_KEYS and len(self._cache) > 1:
            self._cached -= len(self._cache.popitem(last=False)[1])
        return keys
