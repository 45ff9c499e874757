"""Passing the rows of one file through: read, examine, compare with the rows kept before, keep or not."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.dataset import RowProblem
from schemas.specification import DatasetPolicy
from services.ingest.pipeline.contamination import Hit
from services.ingest.pipeline.counts import FileCounts, Filter
from services.ingest.pipeline.duplicates import DuplicateIndex, Kept, Match
from services.ingest.pipeline.examine import Accepted, Examiner
from services.ingest.pipeline.files import HOLDOUT, open_file, reader_of
from services.ingest.pipeline.order import Progress
from services.ingest.pipeline.workers import in_order

PROGRESS_ROWS = 5_000


@dataclass(frozen=True)
class RowFilter:
    """What the rows of every file of a dataset are checked against."""

    index: DuplicateIndex
    policy: DatasetPolicy
    workers: int
    send: Callable[[Progress], None]

    def kept_rows(self, path: Path, examiner: Examiner, counts: FileCounts) -> Iterator[Accepted]:
        """Yield the rows to keep, in order of lines; `counts` has everything else."""
        started = time.monotonic()
        names = tuple(source.name for source in examiner.sources)
        compared = self.index.rows_not_fully_compared
        with open_file(path, counts.role) as stream:
            reader = reader_of(stream, counts.role, self.policy)
            for row in in_order(examiner, reader, workers=self.workers):
                counts.rows += 1
                if isinstance(row, RowProblem):
                    counts.reject(row)
                elif self._keeps(row, names, counts):
                    counts.kept += 1
                    yield row
                if counts.rows % PROGRESS_ROWS == 0:
                    self._send_progress(counts, started)
            counts.blank_lines, counts.has_bom = reader.blank_lines, reader.has_bom
        counts.not_fully_compared = self.index.rows_not_fully_compared - compared
        self._send_progress(counts, started)

    def _keeps(self, row: Accepted, names: tuple[str, ...], counts: FileCounts) -> bool:
        counts.accept_fields(row)
        hits = counts.add_hits(row, names, limit=self.policy.contamination_ratio)
        match = self.index.find(row.digest, row.fingerprint)
        if match is not None:
            counts.add_duplicate(row, match)
        leaks = leaks_of(hits, match, counts.role)
        if leaks:
            counts.add_leaks(leaks)
        why = reason_to_drop(match, counts.role, self.policy, is_contaminated=bool(leaks))
        if why is not None:
            counts.drop(row, why, _repeated(why, leaks, match))
            return False
        if leaks:
            counts.kept_leaks[row.line] = tuple(leaks)
        if match is None or not match.is_exact:
            self.index.add(Kept(counts.role, row.line), row.digest, row.fingerprint)
        return True

    def _send_progress(self, counts: FileCounts, started: float) -> None:
        seconds = round(time.monotonic() - started, 3)
        self.send(Progress(part=counts.role, rows=counts.rows, kept=counts.kept, seconds=seconds))


def leaks_of(hits: dict[str, Hit], match: Match | None, role: str) -> dict[str, int]:
    """Return by source the line of the item that a row gives away. A row like one of the holdout gives that one
    away."""
    leaks = {name: hit.item for name, hit in hits.items()}
    if match is not None and match.kept.file == HOLDOUT and role != HOLDOUT:
        leaks.setdefault(HOLDOUT, match.kept.line)
    return leaks


def reason_to_drop(
    match: Match | None, role: str, policy: DatasetPolicy, *, is_contaminated: bool
) -> Filter | None:
    """Return the filter that takes a good row; None keeps it. The holdout never changes: the gate reads the file."""
    if role == HOLDOUT:
        return None
    if is_contaminated and policy.contamination != "keep":
        return "contamination"
    if match is None or match.kept.file == HOLDOUT:
        return None
    if match.is_exact:
        return "exact_duplicates" if policy.exact_duplicates == "drop" else None
    # A safety mix says one thing in several ways on purpose, and the answers are few.
    return "near_duplicates" if policy.near_duplicates == "drop" and role != "safety_mix" else None


def _repeated(why: Filter, leaks: dict[str, int], match: Match | None) -> str:
    """Return what a dropped row repeats, as people read it."""
    if why == "contamination":
        name, item = min(leaks.items())
        return f"line {item} of {name}"
    assert match is not None, f"{why} without the row that is repeated"
    return f"line {match.kept.line} of the {match.kept.file} file"
