"""Passing the rows of one file through: read, examine, hold against the rows kept before, keep or not."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from schemas.dataset import RowProblem
from schemas.specification import DatasetFormat, DatasetPolicy, format_of_row
from services.ingest.pipeline.duplicates import DuplicateIndex, Kept, Match
from services.ingest.pipeline.examine import Accepted, Examiner, examine_all
from services.ingest.pipeline.lines import LineReader, parse_object
from services.ingest.pipeline.order import Progress
from services.ingest.pipeline.rules import BadRow
from services.ingest.pipeline.tally import FileTally

PROGRESS_ROWS = 5_000


@dataclass(frozen=True)
class Screen:
    """What the rows of every file of a dataset are held against."""

    index: DuplicateIndex
    policy: DatasetPolicy
    workers: int
    say: Callable[[Progress], None]

    def kept_rows(self, path: Path, examiner: Examiner, tally: FileTally) -> Iterator[Accepted]:
        """The rows to keep, in order of lines; everything else is counted in `tally`."""
        started = time.monotonic()
        names = tuple(source.name for source in examiner.sources)
        compared = self.index.rows_not_fully_compared
        with path.open("rb") as stream:
            reader = self._reader(stream, tally)
            for row in examine_all(examiner, reader, workers=self.workers):
                tally.rows += 1
                if isinstance(row, RowProblem):
                    tally.reject(row)
                elif self._keeps(row, names, tally):
                    tally.kept += 1
                    yield row
                if tally.rows % PROGRESS_ROWS == 0:
                    self._say(tally, started)
            tally.blank_lines, tally.has_bom = reader.blank_lines, reader.has_bom
        tally.not_fully_compared = self.index.rows_not_fully_compared - compared
        self._say(tally, started)

    def _reader(self, stream: BinaryIO, tally: FileTally) -> LineReader:
        policy = self.policy
        return LineReader(
            stream, name=tally.role, max_row_bytes=policy.max_row_bytes, max_rows=policy.max_rows
        )

    def _keeps(self, row: Accepted, names: tuple[str, ...], tally: FileTally) -> bool:
        tally.accept_fields(row)
        overlaps = tally.add_overlaps(row, names, above=self.policy.contamination_share)
        match = self.index.find(row.digest, row.signature, row.text)
        if match is not None:
            tally.add_duplicate(row, match)
        is_contaminated = overlaps or _is_leak(match, tally)
        tally.contaminated += is_contaminated
        if not stays(match, tally.role, self.policy, is_contaminated=is_contaminated):
            return False
        if match is None or not match.is_exact:
            self.index.add(Kept(tally.role, row.line), row.digest, row.signature, row.text)
        return True

    def _say(self, tally: FileTally, started: float) -> None:
        seconds = round(time.monotonic() - started, 3)
        self.say(Progress(stage=tally.role, rows=tally.rows, kept=tally.kept, seconds=seconds))


def stays(match: Match | None, role: str, policy: DatasetPolicy, *, is_contaminated: bool) -> bool:
    """Whether a good row is kept. The holdout is never changed: the gate reads the file as it is."""
    if role == "holdout":
        return True
    if is_contaminated and policy.contamination != "keep":
        return False
    if match is None or match.kept.file == "holdout":
        return True
    return (policy.exact_duplicates if match.is_exact else policy.near_duplicates) == "keep"


def _is_leak(match: Match | None, tally: FileTally) -> bool:
    return match is not None and match.kept.file == "holdout" and tally.role != "holdout"


def format_of_file(path: Path, name: str, policy: DatasetPolicy) -> DatasetFormat | None:
    """The format of the first row that has one. Raises FileRefused if the file is no JSONL at all."""
    with path.open("rb") as stream:
        reader = LineReader(stream, name=name, max_row_bytes=policy.max_row_bytes, max_rows=policy.max_rows)
        for line in reader:
            try:
                found = format_of_row(parse_object(line, max_row_bytes=policy.max_row_bytes))
            except BadRow:
                continue
            if found is not None:
                return found
    return None
