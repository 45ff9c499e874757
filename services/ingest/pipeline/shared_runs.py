"""Which words of two texts stand in runs that both have, as contamination is measured: word by word, without case."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from services.ingest.pipeline.formats import Turn
from services.ingest.pipeline.items import Item
from services.ingest.pipeline.text import (
    ANSWER_ROLES,
    GRAM_WORDS,
    SYSTEM_ROLES,
    Keys,
    fold,
    gram_hashes,
    indices_in,
    word_hashes,
)

WORD = re.compile(r"\S+")
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class WrittenText:
    """A text as people read it, and the sequences of its words in which runs are looked for."""

    text: str
    sequences: tuple[tuple[tuple[int, int], ...], ...]
    """Start and end of each word in the text, for each sequence."""

    def words(self, sequence: int) -> Keys:
        return word_hashes(" ".join(self.text[start:end] for start, end in self.sequences[sequence]))


@dataclass(frozen=True)
class SharedRuns:
    """Words of one text that stand in runs which the other has too."""

    spans: tuple[tuple[int, int], ...]
    """Start and end in characters of each run, in order."""
    num_words: int
    longest_run: int
    """Number of words of the longest run."""

    @property
    def begin(self) -> int:
        """Return the first character of the longest span; 0 where there is none."""
        return max(self.spans, key=lambda span: span[1] - span[0], default=(0, 0))[0]


def written_row(turns: Sequence[Turn]) -> WrittenText:
    """Return a row as `role: content` by turn. Its sequences: the system turns, then prompt and answers."""
    pieces: list[str] = []
    words: dict[str, list[tuple[int, int]]] = {"system": [], "prompt": [], "answers": []}
    length = 0
    for turn in turns:
        label, content = f"{turn.role}: ", fold(turn.content)
        start = length + len(label)
        kind = "system" if turn.role in SYSTEM_ROLES else "answers" if turn.role in ANSWER_ROLES else "prompt"
        words[kind] += word_spans(content, start)
        pieces.append(label + content)
        length = start + len(content) + 2
    return WrittenText("\n\n".join(pieces), (tuple(words["system"]), (*words["prompt"], *words["answers"])))


def written_item(item: Item) -> list[WrittenText]:
    """Return each text that the item is found by; a short one is followed by the beginning of its answer."""
    return [_asked(fold(text), item.answer) for text in item.asked]


def _asked(text: str, answer: str) -> WrittenText:
    words = word_spans(text, 0)
    if len(words) < GRAM_WORDS and answer:
        start = len(text) + 1
        text, words = f"{text} {answer}", [*words, *word_spans(answer, start)][:GRAM_WORDS]
    return WrittenText(text, (tuple(words),))


def word_spans(text: str, offset: int) -> list[tuple[int, int]]:
    return [(match.start() + offset, match.end() + offset) for match in WORD.finditer(text)]


def compared(row: WrittenText, item: WrittenText, evidence: Keys) -> tuple[SharedRuns, SharedRuns]:
    """Return what the row and the item share: runs of 13 words, or of all words of a shorter item.

    evidence: sorted hashes of the 13-grams that count. Where none of them is shared, boilerplate is shown.
    """
    sides = (_sequences(row), _sequences(item))
    size = min(GRAM_WORDS, *(max(map(len, words), default=0) for words in sides))
    if not size:
        return _runs_of(row, ()), _runs_of(item, ())
    grams = [[gram_hashes(words, size) for words in side] for side in sides]
    common: Keys = np.intersect1d(np.concatenate(grams[0]), np.concatenate(grams[1]))
    counted = common[indices_in(evidence, common) >= 0]
    common = counted if len(counted) else common
    in_row, in_item = ([_marks(each, common, size) for each in side] for side in grams)
    return _runs_of(row, in_row), _runs_of(item, in_item)


def _sequences(written: WrittenText) -> list[Keys]:
    return [written.words(index) for index in range(len(written.sequences))]


def _marks(grams: Keys, common: Keys, size: int) -> Marks:
    """Return for each word whether it stands in a common gram."""
    is_common = indices_in(common, grams) >= 0
    marks = np.zeros(len(grams) + size - 1 if len(grams) else 0, np.bool_)
    for offset in range(size):
        marks[offset : offset + len(grams)] |= is_common
    return marks


def _runs_of(written: WrittenText, marks: Iterable[Marks]) -> SharedRuns:
    words: list[tuple[tuple[int, int], bool]] = []
    longest = num_words = 0
    for sequence, own in zip(written.sequences, marks, strict=False):
        flags = [*own.tolist(), *[False] * (len(sequence) - len(own))]
        words += zip(sequence, flags, strict=True)
        longest = max([longest, *(len([*run]) for is_marked, run in groupby(flags) if is_marked)])
        num_words += sum(flags)
    return SharedRuns(tuple(_spans(written.text, sorted(words))), num_words, longest)


def _spans(text: str, words: Sequence[tuple[tuple[int, int], bool]]) -> list[tuple[int, int]]:
    """Join marked words that follow each other with nothing but white space between them."""
    spans = [span for span, is_marked in words if is_marked]
    joined: list[tuple[int, int]] = spans[:1]
    for before, span in pairwise(spans):
        if text[before[1] : span[0]].isspace():
            joined[-1] = (joined[-1][0], span[1])
        else:
            joined.append(span)
    return joined
