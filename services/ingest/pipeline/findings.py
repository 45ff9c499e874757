"""What is found in the files of one dataset: a tally per file, and why it cannot become a version."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from schemas.dataset import FileRole
from schemas.specification import DatasetPolicy
from services.ingest.pipeline.rules import FileRefused
from services.ingest.pipeline.tally import FileTally, refusal_of

MOST_IMPORTANT_FIRST = ("dataset", "training", "validation", "holdout", "safety_mix")


@dataclass
class Findings:
    policy: DatasetPolicy
    tallies: list[FileTally] = field(default_factory=list)
    _refusals: list[tuple[str, FileRefused]] = field(default_factory=list)

    def refuse(self, role: str, refusal: FileRefused) -> None:
        self._refusals.append((role, refusal))

    @contextmanager
    def of(self, role: FileRole, sha256: str) -> Iterator[FileTally]:
        """Count one file. Its refusal is noted and not raised, so that the other files are checked too."""
        tally = FileTally(role, sha256)
        self.tallies.append(tally)
        try:
            yield tally
        except FileRefused as refusal:
            self.refuse(role, refusal)
            return
        if verdict := refusal_of(tally, self.policy):
            self.refuse(role, verdict)

    def tally(self, role: FileRole) -> FileTally | None:
        return next((tally for tally in self.tallies if tally.role == role), None)

    @property
    def code(self) -> str:
        return self._ordered()[0].code if self._refusals else "ready"

    @property
    def message(self) -> str:
        return "; ".join(dict.fromkeys(refusal.message for refusal in self._ordered()))

    def _ordered(self) -> list[FileRefused]:
        ordered = sorted(self._refusals, key=lambda entry: MOST_IMPORTANT_FIRST.index(entry[0]))
        return [refusal for _, refusal in ordered]
