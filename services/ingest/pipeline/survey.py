"""The pass before the screening: what the rows of the files have in common, and so says nothing of any of them."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from schemas.specification import DatasetFormat, DatasetPolicy
from services.ingest.pipeline.boilerplate import Common, GramCounter, frequent_above, runs
from services.ingest.pipeline.contamination import Source, holdout_source, row_grams, without_boilerplate
from services.ingest.pipeline.files import HOLDOUT, format_of_file, open_file, reader_of
from services.ingest.pipeline.formats import parse_example
from services.ingest.pipeline.lines import Line, parse_object
from services.ingest.pipeline.order import Progress, WorkOrder
from services.ingest.pipeline.rules import BadRow, FileRefused
from services.ingest.pipeline.text import NO_KEYS, Keys, RowText, indices_in, row_text, shingle_hashes
from services.ingest.pipeline.workers import in_order


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What one row shows of itself."""

    digest: int
    key: int
    shingles: Keys
    gram_indices: tuple[npt.NDArray[np.int64], ...]
    """Indices of the row's grams in each source."""


@dataclass(frozen=True)
class Surveyor:
    """Surveys rows of one file, in any process. Bad rows are passed over: the screening lists them."""

    expected: DatasetFormat
    max_row_bytes: int
    sources: tuple[Source, ...] = ()

    def __call__(self, lines: list[Line]) -> list[Surveyed]:
        return [self._surveyed(row) for _, row in self.texts(lines)]

    def texts(self, lines: Iterable[Line]) -> Iterator[tuple[int, RowText]]:
        for line in lines:
            try:
                row = parse_object(line, max_row_bytes=self.max_row_bytes)
                example = parse_example(row, expected=self.expected, line=line.number)
            except BadRow:
                continue
            yield line.number, row_text(example.turns)

    def _surveyed(self, row: RowText) -> Surveyed:
        grams = row_grams(row) if self.sources else NO_KEYS
        by_source = (indices_in(source.grams, grams) for source in self.sources)
        return Surveyed(
            int.from_bytes(row.digest[:8]),
            row.key,
            shingle_hashes(row.prompt),
            tuple(indices[indices >= 0] for indices in by_source),
        )


class FileSurvey:
    """Counts over the different rows of one file; a row that is repeated word for word counts once."""

    def __init__(self, sources: tuple[Source, ...] = ()) -> None:
        self.rows_with = [np.zeros(len(source.grams), np.int64) for source in sources]
        """Number of rows in which each gram occurs, by source."""
        self._digests: set[int] = set()
        self._keys: list[int] = []
        self._shingles = GramCounter()

    @property
    def rows(self) -> int:
        return len(self._digests)

    @property
    def keys(self) -> Keys:
        return np.array(self._keys, np.uint64)

    def add(self, row: Surveyed) -> None:
        if row.digest in self._digests:
            return
        self._digests.add(row.digest)
        self._keys.append(row.key)
        self._shingles.add(row.shingles)
        for counts, indices in zip(self.rows_with, row.gram_indices, strict=True):
            counts[indices] += 1

    def boilerplate(self) -> Keys:
        return self._shingles.frequent(frequent_above(self.rows))

    def reduced(self, sources: Iterable[Source]) -> tuple[Source, ...]:
        """Return the sources without this file's boilerplate."""
        pairs = zip(sources, self.rows_with, strict=True)
        return tuple(without_boilerplate(source, rows_with, rows=self.rows) for source, rows_with in pairs)


@dataclass(frozen=True)
class Survey:
    common: Common
    sources: tuple[Source, ...]
    """Sources without boilerplate: registered files, then the holdout."""


def survey_of(order: WorkOrder, registered: tuple[Source, ...], send: Callable[[Progress], None]) -> Survey:
    """Read every file of a dataset once. A file without rows is passed over: the screening refuses it."""
    policy = order.spec.policy
    holdout = tuple(_holdout_source(path, policy) for path in [order.holdout] if path is not None)
    sources = (*registered, *holdout)
    training = _survey(order.training, order, "training", sources, send)
    rest = {
        role: _survey(path, order, role, (), send)
        for role, path in (
            (HOLDOUT, order.holdout),
            ("validation", order.validation),
            ("safety_mix", order.safety_mix),
        )
        if path is not None
    }
    # Near duplicates are dropped from these alone.
    filtered = [training, *(survey for role, survey in rest.items() if role == "validation")]
    common = common_to(
        (survey.boilerplate() for survey in filtered), (survey.keys for survey in (training, *rest.values()))
    )
    return Survey(common, training.reduced(sources))


def common_to(boilerplate: Iterable[Keys], keys: Iterable[Keys]) -> Common:
    every, counts = runs(np.concatenate([NO_KEYS, *keys]))
    frequent, _ = runs(np.concatenate([NO_KEYS, *boilerplate]))
    return Common(frequent, every[counts > 1])


def _holdout_source(path: Path, policy: DatasetPolicy) -> Source:
    return holdout_source(HOLDOUT, _texts(path, HOLDOUT, policy))


def _texts(path: Path, role: str, policy: DatasetPolicy) -> Iterator[tuple[int, RowText]]:
    """Yield the rows of a file that keep its format's rules, by line."""
    with suppress(FileRefused), open_file(path, role) as stream:
        if surveyor := _surveyor(path, role, policy, ()):
            yield from surveyor.texts(reader_of(stream, role, policy))


def _survey(
    path: Path, order: WorkOrder, role: str, sources: tuple[Source, ...], send: Callable[[Progress], None]
) -> FileSurvey:
    file_survey = FileSurvey(sources)
    policy, started = order.spec.policy, time.monotonic()
    with suppress(FileRefused), open_file(path, role) as stream:
        if surveyor := _surveyor(path, role, policy, sources):
            for row in in_order(surveyor, reader_of(stream, role, policy), workers=order.workers):
                file_survey.add(row)
    seconds = round(time.monotonic() - started, 3)
    send(Progress(part=f"survey of {role}", rows=file_survey.rows, kept=file_survey.rows, seconds=seconds))
    return file_survey


def _surveyor(path: Path, role: str, policy: DatasetPolicy, sources: tuple[Source, ...]) -> Surveyor | None:
    asked = policy.format if role in ("training", "validation") else "auto"
    expected = format_of_file(path, role, policy) if asked == "auto" else asked
    return Surveyor(expected, policy.max_row_bytes, sources) if expected else None
