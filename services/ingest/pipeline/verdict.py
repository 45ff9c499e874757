"""The verdict on the files of one dataset: the counts of each, and why it cannot become a version."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from schemas.dataset import FileRole
from schemas.specification import DatasetPolicy
from services.ingest.pipeline.counts import FileCounts, refusal_of
from services.ingest.pipeline.rules import FileRefused

MOST_IMPORTANT_FIRST = ("dataset", "training", "validation", "holdout", "safety_mix")


@dataclass
class DatasetVerdict:
    policy: DatasetPolicy
    files: list[FileCounts] = field(default_factory=list)
    _refusals: list[tuple[str, FileRefused]] = field(default_factory=list)

    def refuse(self, role: str, refusal: FileRefused) -> None:
        self._refusals.append((role, refusal))

    @contextmanager
    def of(self, role: FileRole, sha256: str) -> Iterator[FileCounts]:
        """Count one file. Its refusal is noted and not raised, so that the other files are checked too."""
        counts = FileCounts(role, sha256)
        self.files.append(counts)
        try:
            yield counts
        except FileRefused as refusal:
            self.refuse(role, refusal)
            return
        if reason := refusal_of(counts, self.policy):
            self.refuse(role, reason)

    def counts(self, role: FileRole) -> FileCounts | None:
        return next((counts for counts in self.files if counts.role == role), None)

    @property
    def code(self) -> str:
        return self._ordered()[0].code if self._refusals else "ready"

    @property
    def message(self) -> str:
        return "; ".join(dict.fromkeys(refusal.message for refusal in self._ordered()))

    def _ordered(self) -> list[FileRefused]:
        ordered = sorted(self._refusals, key=lambda entry: MOST_IMPORTANT_FIRST.index(entry[0]))
        return [refusal for _, refusal in ordered]
