"""How much of what the gate asks (benchmarks, suites, the holdout) a row holds word for word.

Measured from the item's side: the share of an item's own 13-grams that the row holds. Grams that many items share are
no evidence, nor are those that many rows of the training file share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.ingest.pipeline.boilerplate import frequent_above, runs
from services.ingest.pipeline.items import Item, read_items
from services.ingest.pipeline.text import (
    GRAM_WORDS,
    NO_KEYS,
    Keys,
    RowText,
    distinct,
    gram_hashes,
    indices_in,
    whole_hash,
    word_hashes,
)

SHOWN_CHARACTERS = 160

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """The items of one benchmark, suite or holdout as sets of gram hashes, boilerplate left out.

    Gram i is in the sets set_ids[starts[i]:starts[i+1]]; set s has sizes[s] grams and comes from lines[s].
    """

    name: str
    grams: Keys
    starts: Integers
    set_ids: Integers
    sizes: Integers
    lines: Integers
    is_shared: npt.NDArray[np.bool_]
    """Whether each gram may be boilerplate of the training file. A text that only one item has is a leak, however
    many rows repeat it; in the holdout, whose rows are of the training file's kind, every gram but whole rows may."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The item of a source that a row holds most of."""

    share: float
    """Share of the item's grams that the row holds, 0 < share <= 1."""
    item: int
    """1-based line in the source's file."""


def row_grams(row: RowText) -> Keys:
    """Return all hashes by which a row can be found: 13-grams, short prompt turns as a whole, the row as a whole."""
    turns = [word_hashes(turn) for turn in row.prompt_turns]
    prompt = _joined(turns)
    answers = word_hashes(row.answers)
    wholes = [whole_hash(turn) for turn in (*turns, prompt) if 0 < len(turn) < GRAM_WORDS]
    wholes.append(whole_hash(prompt, answers))
    system = gram_hashes(word_hashes(row.system))
    parts = (system, gram_hashes(np.concatenate([prompt, answers])), np.array(wholes, np.uint64))
    return distinct(np.concatenate(parts))


def _joined(words: Sequence[Keys]) -> Keys:
    return np.concatenate(words) if words else NO_KEYS


def grams_of_text(asked: str, answer: str) -> list[Keys]:
    """Return the sets of grams by which one text is found; a row that holds one of them holds the text.

    A text under 13 words is found as a whole turn, or followed by the beginning of its answer.
    """
    words = word_hashes(asked)
    if len(words) >= GRAM_WORDS:
        return [distinct(gram_hashes(words))]
    if not len(words):
        return []
    followed = np.concatenate([words, word_hashes(answer)])[:GRAM_WORDS]
    return [
        np.array([whole_hash(words)], np.uint64),
        *([gram_hashes(followed)] if len(followed) == GRAM_WORDS else []),
    ]


def registered_source(name: str, items: Iterable[Item]) -> Source:
    """Return a benchmark or suite as a source."""
    grams_of_items = [
        (item.line, [grams for text in item.asked for grams in grams_of_text(text, item.answer)])
        for item in items
    ]
    source, rows_with = _source(name, grams_of_items)
    return replace(source, is_shared=rows_with > 1)


def holdout_source(name: str, rows: Iterable[tuple[int, RowText]]) -> Source:
    """Return the holdout as a source, in which a row as a whole is evidence too, however frequent it is."""
    grams_of_items, wholes = [], []
    for line, row in rows:
        asked = " ".join(row.prompt_turns)
        whole = whole_hash(word_hashes(asked), word_hashes(row.answers))
        wholes.append(whole)
        grams_of_items.append((line, [*grams_of_text(asked, row.answers), np.array([whole], np.uint64)]))
    source, _ = _source(name, grams_of_items)
    return replace(source, is_shared=indices_in(np.unique(np.array(wholes, np.uint64)), source.grams) < 0)


def _source(name: str, items: list[tuple[int, list[Keys]]]) -> tuple[Source, npt.NDArray[np.uint32]]:
    """Return the source without its own boilerplate, and in how many different items each gram occurs."""
    different = {whole_hash(*sets): sets for _, sets in items}
    known, counts = runs(_joined([distinct(_joined(sets)) for sets in different.values()]))
    sets = [grams for _, of_item in items for grams in of_item]
    lines = np.array([line for line, of_item in items for _ in of_item], np.int64)
    is_boilerplate = counts > frequent_above(len(different))
    everything = _from_pairs(
        name,
        known,
        indices_in(known, _joined(sets)),
        np.repeat(np.arange(len(sets)), list(map(len, sets))),
        lines,
    )
    return reduced(everything, is_boilerplate), counts[~is_boilerplate]


def _from_pairs(name: str, grams: Keys, gram_ids: Integers, set_ids: Integers, lines: Integers) -> Source:
    order = np.argsort(gram_ids, kind="stable")
    starts = np.searchsorted(gram_ids[order], np.arange(len(grams) + 1))
    sizes = np.bincount(set_ids, minlength=len(lines))
    return Source(name, grams, starts, set_ids[order], sizes, lines, np.ones(len(grams), np.bool_))


def reduced(source: Source, is_boilerplate: npt.NDArray[np.bool_]) -> Source:
    """Return the source without some of its grams. A set that loses all of them is never found."""
    is_kept = np.repeat(~is_boilerplate, np.diff(source.starts))
    new_ids = np.cumsum(~is_boilerplate) - 1
    gram_ids = np.repeat(new_ids, np.diff(source.starts))[is_kept]
    left = _from_pairs(
        source.name, source.grams[~is_boilerplate], gram_ids, source.set_ids[is_kept], source.lines
    )
    return replace(left, is_shared=source.is_shared[~is_boilerplate])


def without_boilerplate(source: Source, rows_with: Integers, *, rows: int) -> Source:
    """Return the source without the training file's boilerplate, given in how many of its rows each gram occurs."""
    return reduced(source, source.is_shared & (rows_with > frequent_above(rows)))


def best_hits(rows: Sequence[Keys], source: Source) -> list[Hit | None]:
    """Return for each row, given by its grams, the item that it holds most of; the first of equals."""
    row_ids = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    indices = indices_in(source.grams, _joined(rows))
    indices, row_ids = indices[indices >= 0], row_ids[indices >= 0]
    counts = source.starts[indices + 1] - source.starts[indices]
    # One entry for each set that has the gram: where its postings start, plus 0, 1, 2 …
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    set_ids = source.set_ids[np.repeat(source.starts[indices], counts) + offsets]
    pairs, in_common = runs((np.repeat(row_ids, counts) * len(source.lines) + set_ids).astype(np.uint64))
    row_of, set_of = np.divmod(pairs.astype(np.int64), len(source.lines) or 1)
    shares = in_common / source.sizes[set_of]
    hits: list[Hit | None] = [None] * len(rows)
    # The best of each row comes last in this order.
    for pair in np.lexsort((-set_of, shares, row_of)).tolist():
        hits[row_of[pair]] = Hit(float(shares[pair]), int(source.lines[set_of[pair]]))
    return hits


def shared_words(row: RowText, source: Source) -> str:
    """Return the beginning of the row's longest run of words that the source has too, as a message shows it."""
    text = "\n".join((row.system, *row.prompt_turns, row.answers))
    words = text.split()
    is_known = indices_in(source.grams, gram_hashes(word_hashes(text))) >= 0
    edges = np.flatnonzero(np.diff(is_known, prepend=False, append=False))
    spans = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    if not spans:
        return " ".join(words)[:SHOWN_CHARACTERS]
    start, end = max(spans, key=lambda span: span[1] - span[0])
    return " ".join(words[start : end + GRAM_WORDS - 1])[:SHOWN_CHARACTERS]


def read_source(name: str, path: Path) -> Source:
    """Return a registered file as a source, whatever its fields are."""
    return registered_source(name, read_items(name, path))
