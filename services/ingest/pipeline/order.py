"""What the child process is asked to do, and what it says on standard output: one JSON object per line."""

from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from schemas.base import Bytes, Count, Sha256, Value
from schemas.dataset import FileRole
from schemas.report import SourceKind
from schemas.specification import DatasetSpec

READY = "ready"
REPORT = "report.json"
WINDOW_TOKENS = 4096
"""Length in tokens of an `auto` window where the base model's context is not smaller."""


class Limits(Value):
    memory_bytes: Bytes
    """Address space of each process."""
    cpu_seconds: Count
    file_bytes: Bytes
    """Size of any one file that is written."""


class SourceFile(Value):
    name: str
    kind: SourceKind
    digest: Sha256
    path: Path


class WorkOrder(Value):
    version: Sha256
    tenant: str
    spec: DatasetSpec
    template_sha256: Sha256
    context_tokens: Count
    tokenizer: Path
    training: Path
    validation: Path | None = None
    holdout: Path | None = None
    safety_mix: Path | None = None
    sources: tuple[SourceFile, ...] = ()
    answer_tokens: Count | None = None
    """Length in tokens of the longest answer that the gate lets a model give; None: not published yet."""
    output: Path
    scratch: Path
    limits: Limits
    workers: Count = 1

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Paths of all that the validating process reads."""
        paths = (self.tokenizer, self.training, self.validation, self.holdout, self.safety_mix)
        return (*(path for path in paths if path is not None), *(source.path for source in self.sources))

    def path_of(self, role: FileRole) -> Path | None:
        paths: dict[FileRole, Path | None] = {
            "training": self.training,
            "validation": self.validation,
            "holdout": self.holdout,
            "safety_mix": self.safety_mix,
        }
        return paths[role]

    @property
    def max_seq_length(self) -> int:
        asked = self.spec.policy.max_seq_length
        return min(WINDOW_TOKENS, self.context_tokens) if asked == "auto" else asked


class Progress(Value):
    event: Literal["progress"] = "progress"
    part: str
    rows: Count
    kept: Count
    seconds: float


class Finished(Value):
    """`report.json` is written, and `manifest.json` where the code is `ready`."""

    event: Literal["finished"] = "finished"
    code: str
    message: str


class LimitExceeded(Value):
    """A limit of the process was reached."""

    event: Literal["exhausted"] = "exhausted"
    resource: str
    message: str


ChildMessage = Progress | Finished | LimitExceeded
CHILD_MESSAGE: TypeAdapter[ChildMessage] = TypeAdapter(ChildMessage)
