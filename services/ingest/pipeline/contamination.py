"""How much of a row stands word for word in what the gate asks: benchmarks, suites, the holdout."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from services.ingest.pipeline.lines import LineReader, parse_object
from services.ingest.pipeline.rules import BadRow, FileRefused
from services.ingest.pipeline.text import Keys, gram_hashes, normalise, words

MAX_ITEM_BYTES = 4 << 20
MAX_ITEMS = 5_000_000


@dataclass(frozen=True)
class Source:
    """The 13-grams of one benchmark, suite or holdout, sorted and unique; shorter texts count as a whole."""

    name: str
    grams: Keys


def make_source(name: str, texts: Iterable[str]) -> Source:
    found = [gram_hashes(words(text)) for text in texts]
    return Source(name, np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64))


def read_source(name: str, path: Path) -> Source:
    """A registered file: each row counts as a whole and by each of its strings, whatever its fields are."""
    with path.open("rb") as stream:
        reader = LineReader(stream, name=name, max_row_bytes=MAX_ITEM_BYTES, max_rows=MAX_ITEMS)
        return make_source(name, texts_of_rows(name, reader))


def texts_of_rows(name: str, reader: LineReader) -> Iterator[str]:
    for line in reader:
        try:
            row = parse_object(line, max_row_bytes=MAX_ITEM_BYTES)
        except BadRow as error:
            raise FileRefused(
                "benchmark_unreadable", f"registered file {name}, line {line.number}: {error}"
            ) from None
        strings = [normalise(text) for text in strings_of(row)]
        yield " ".join(strings)
        yield from strings


def strings_of(value: Any) -> Iterator[str]:
    """Every string in document order, except the roles of messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, child in value.items():
            if key != "role":
                yield from strings_of(child)
    elif isinstance(value, list):
        for child in value:
            yield from strings_of(child)


def hit_shares(rows: list[Keys], sources: tuple[Source, ...]) -> list[tuple[float, ...]]:
    """Share of each row's 13-grams found in each source; a row of fewer than 13 words is one gram."""
    if not rows:
        return []
    starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
    grams = np.concatenate(rows)
    lengths = np.array([len(row) for row in rows])
    assert lengths.all(), "a row without words passed the rules"
    shares = [np.add.reduceat(_contains(source.grams, grams), starts) / lengths for source in sources]
    return [tuple(float(share[row]) for share in shares) for row in range(len(rows))]


def _contains(known: Keys, grams: Keys) -> Any:
    if not len(known):
        return np.zeros(len(grams), np.int64)
    place = np.minimum(np.searchsorted(known, grams), len(known) - 1)
    return (known[place] == grams).astype(np.int64)
