"""What makes two rows the same text: normalisation, words, 13-grams, character 5-grams."""

import hashlib
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from services.ingest.pipeline.formats import Example, Turn

GRAM_WORDS = 13
SHINGLE_CHARACTERS = 5

Keys = npt.NDArray[np.uint64]


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
    last = max(len(text_words) - GRAM_WORDS, 0)
    if not text_words:
        return np.empty(0, np.uint64)
    return np.fromiter(
        (
            xxhash.xxh3_64_intdigest(" ".join(text_words[start : start + GRAM_WORDS]).encode())
            for start in range(last + 1)
        ),
        dtype=np.uint64,
        count=last + 1,
    )


def shingle_keys(text: str) -> Keys:
    """The set of character 5-grams as exact 105-bit keys in order. Shape (shingles, 2); no hash is involved.

    A text shorter than five characters is one shingle.
    """
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    if len(points) < SHINGLE_CHARACTERS:
        points = np.pad(points, (0, SHINGLE_CHARACTERS - len(points)), constant_values=0x1FFFFF)
    a, b, c, d, e = (points[shift : len(points) - 4 + shift] for shift in range(SHINGLE_CHARACTERS))
    keys = np.stack([a << np.uint64(42) | b << np.uint64(21) | c, d << np.uint64(21) | e], axis=1)
    return _unique(keys)


def jaccard(left: Keys, right: Keys) -> float:
    """Exact similarity of two sets of shingle keys."""
    both = np.concatenate([left, right])
    shared = len(both) - len(_unique(both))
    return shared / (len(both) - shared)


def _unique(keys: Keys) -> Keys:
    ordered: Keys = keys[np.lexsort((keys[:, 1], keys[:, 0]))]
    first = np.ones(len(ordered), bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    unique: Keys = ordered[first]
    return unique
