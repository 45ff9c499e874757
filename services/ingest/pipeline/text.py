"""What rows say, in forms to compare: folded text, hashes of words, 13-grams, character 5-grams."""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash
from numpy.lib.stride_tricks import sliding_window_view

from services.ingest.pipeline.formats import Turn

GRAM_WORDS = 13
SHINGLE_CHARACTERS = 5

SYSTEM_ROLES = frozenset({"system", "developer"})
ANSWER_ROLES = frozenset({"assistant", "completion", "chosen", "rejected"})

Keys = npt.NDArray[np.uint64]


def odd_numbers(count: int, *, salt: str = "") -> Keys:
    """Odd 64-bit numbers without a pattern, the same every time. Shape (count,)."""
    digests = (hashlib.sha256(salt.encode() + bytes([index])).digest() for index in range(count))
    return np.array([int.from_bytes(digest[:8]) | 1 for digest in digests], np.uint64)


# A weighted sum modulo 2^64 of the parts of a gram is a universal hash of it.
WEIGHTS = odd_numbers(GRAM_WORDS)
NO_KEYS: Keys = np.empty(0, np.uint64)


def fold(text: str) -> str:
    """NFC, line ends as `\\n`, no white space at the ends of lines. Case, indentation and inner lines stay."""
    lines = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip()


@dataclass(frozen=True, slots=True)
class RowText:
    """A row's folded text by what it is for: system turns, prompt (user and tool turns), answers."""

    digest: bytes
    """sha256 over roles, weights and folded contents: equal digests are exact duplicates."""
    key: int
    """64-bit hash of system turns and answers: only rows of equal keys can be near duplicates."""
    system: str
    prompt_turns: tuple[str, ...]
    answers: str

    @property
    def prompt(self) -> str:
        """The prompt as its similarity is measured: without case."""
        return "\n".join(self.prompt_turns).strip().lower()


def row_text(turns: Sequence[Turn]) -> RowText:
    digest, key = hashlib.sha256(), xxhash.xxh3_64()
    system, prompt, answers = [], [], []
    for turn in turns:
        content = fold(turn.content)
        identity = f"{turn.role}\x1f{turn.is_trained:d}\x1f{content}\x1e".encode()
        digest.update(identity)
        if turn.role in SYSTEM_ROLES:
            key.update(identity)
            system.append(content)
        elif turn.role in ANSWER_ROLES:
            key.update(identity)
            answers.append(content)
        else:
            prompt.append(content)
    return RowText(digest.digest(), key.intdigest(), "\n".join(system), tuple(prompt), "\n".join(answers))


def word_hashes(text: str) -> Keys:
    """64-bit hashes of the lower-cased words between white space; punctuation stays. Shape (words,)."""
    words = text.lower().split()
    return np.fromiter(map(xxhash.xxh3_64_intdigest, map(str.encode, words)), np.uint64, len(words))


def gram_hashes(words: Keys, size: int = GRAM_WORDS) -> Keys:
    """Hashes of all grams of `size` words, at most 13; none where there are fewer words.

    Shape (grams,), with repeats.
    """
    if len(words) < size:
        return NO_KEYS
    grams: Keys = sliding_window_view(words, size) @ WEIGHTS[:size]
    return grams


def whole_hash(*parts: Keys) -> int:
    """Return the hash of texts of words as a whole, the parts kept apart from each other."""
    return xxhash.xxh3_64_intdigest(b"\x1e".join(part.tobytes() for part in parts))


def shingle_hashes(text: str) -> Keys:
    """The set of character 5-grams as sorted 64-bit hashes; a shorter text is one shingle. Shape (shingles,).

    Two different shingles share a hash with a probability of 2^-64.
    """
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64) + np.uint64(1)
    length = min(len(points), SHINGLE_CHARACTERS)
    if not length:
        return NO_KEYS
    count = len(points) - length + 1
    hashes: Keys = points[:count] * WEIGHTS[0]
    for index in range(1, length):
        hashes += points[index : index + count] * WEIGHTS[index]
    return distinct(hashes)


def distinct(keys: Keys) -> Keys:
    """The set of the keys, sorted."""
    if not len(keys):
        return keys
    ordered = np.sort(keys)
    different: Keys = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return different


def indices_in(known: Keys, keys: Keys) -> npt.NDArray[np.int64]:
    """Return the index of each key in the sorted set `known`; -1 where it is not in it."""
    if not len(known):
        return np.full(len(keys), -1, np.int64)
    indices = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[indices] == keys, indices, -1)


def without(keys: Keys, known: Keys) -> Keys:
    """The keys that are not in the sorted set `known`."""
    return keys[indices_in(known, keys) < 0]


def jaccard(left: Keys, right: Keys) -> float:
    """Similarity of two sets of shingle hashes, counted in full."""
    both = np.sort(np.concatenate([left, right]))
    shared = int(np.count_nonzero(both[1:] == both[:-1]))
    return shared / (len(both) - shared) if len(both) else 1.0
