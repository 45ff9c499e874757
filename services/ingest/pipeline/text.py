"""What makes two rows the same text: normalisation, words, 13-grams, character 5-grams."""

import hashlib
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash
from numpy.lib.stride_tricks import sliding_window_view

from services.ingest.pipeline.formats import Example, Turn

GRAM_WORDS = 13
SHINGLE_CHARACTERS = 5

Keys = npt.NDArray[np.uint64]

# Odd numbers without a pattern: a weighted sum modulo 2^64 of the parts of a gram is a universal hash of it.
WEIGHTS: Keys = np.array(
    [int.from_bytes(hashlib.sha256(bytes([place])).digest()[:8]) | 1 for place in range(GRAM_WORDS)],
    np.uint64,
)


def normalise(text: str) -> str:
    """NFC, every run of white space one space, none at the ends. Case stays."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def row_digest(turns: Sequence[Turn]) -> bytes:
    """sha256 over roles and normalised contents: equal digests are exact duplicates."""
    digest = hashlib.sha256()
    for turn in turns:
        digest.update(f"{turn.role}\x1f{normalise(turn.content)}\x1e".encode())
    return digest.digest()


def conversation_text(example: Example) -> str:
    """The normalised row without its system turn: many rows share one, which hides their differences."""
    return " ".join(normalise(turn.content) for turn in example.turns if turn.role != "system")


def words(text: str) -> list[str]:
    """Lower-cased words between white space; punctuation stays with its word."""
    return text.lower().split()


def gram_hashes(text_words: list[str]) -> Keys:
    """64-bit hashes of all 13-grams; of the whole text where it is shorter. Shape (grams,), with repeats."""
    hashes = np.array([xxhash.xxh3_64_intdigest(word.encode()) for word in text_words], np.uint64)
    length = min(len(hashes), GRAM_WORDS)
    if not length:
        return hashes
    grams: Keys = sliding_window_view(hashes, length) @ WEIGHTS[:length]
    return grams


def shingle_hashes(text: str) -> Keys:
    """The set of character 5-grams as sorted 64-bit hashes; a shorter text is one shingle. Shape (shingles,).

    Two different shingles share a hash with a probability of 2^-64.
    """
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64) + 1
    length = min(len(points), SHINGLE_CHARACTERS)
    if not length:
        return points
    hashes: Keys = np.unique(sliding_window_view(points, length) @ WEIGHTS[:length])
    return hashes


def jaccard(left: Keys, right: Keys) -> float:
    """Similarity of two sets of shingle hashes, counted in full."""
    both = np.sort(np.concatenate([left, right]))
    shared = int(np.count_nonzero(both[1:] == both[:-1]))
    return shared / (len(both) - shared)
