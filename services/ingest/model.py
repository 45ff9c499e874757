"""What ingest knows of dataset versions, and the states they pass through."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from schemas.artifacts import DatasetCounts, DatasetFiles
from schemas.base import Count, FileRef, Sha256, Value
from schemas.dataset import RowProblem
from shared.transitions import Transitions


class VersionState(StrEnum):
    VALIDATING = "validating"
    READY = "ready"  # its manifest is in S3
    REJECTED = "rejected"  # its files break rules; the same files always will
    FAILED = "failed"  # it could not be validated; asked again, it may be
    DELETING = "deleting"  # marked; its bytes go when no attempt needs them
    DELETED = "deleted"


TRANSITIONS = Transitions[VersionState](
    {
        VersionState.VALIDATING: frozenset({VersionState.READY, VersionState.REJECTED, VersionState.FAILED}),
        VersionState.READY: frozenset({VersionState.DELETING}),
        VersionState.REJECTED: frozenset({VersionState.DELETING}),
        VersionState.FAILED: frozenset({VersionState.VALIDATING, VersionState.DELETING}),
        VersionState.DELETING: frozenset({VersionState.DELETED}),
        VersionState.DELETED: frozenset({VersionState.VALIDATING}),
    }
)


class BaseModel(Value):
    """A registered base model, as far as tokens depend on it."""

    base_sha: Sha256
    manifest_sha256: Sha256
    template_sha256: Sha256
    context_tokens: Count


class Source(Value):
    """A registered benchmark or safety suite that rows are checked against."""

    kind: Literal["benchmark", "suite"]
    name: str
    digest: Sha256
    file: FileRef


class Ready(Value):
    manifest_sha256: Sha256
    template_sha256: Sha256
    counts: DatasetCounts
    files: DatasetFiles | None = None
    """Files of the version; None in rows written before they were kept. The version's id covers them."""


class Rejection(Value):
    code: str
    message: str
    problems: tuple[RowProblem, ...] = ()
    report_key: str | None = None
    is_final: bool = True
    """False where the files may be good, but could not be validated."""


@dataclass(frozen=True)
class Version:
    id: str
    tenant: str
    state: VersionState
    base_sha: str
    benchmarks: dict[str, str]
    suites: dict[str, str]
    ready: Ready | None = None
    rejection: Rejection | None = None
    revision: int = 0

    def to(self, state: VersionState, **changes: Any) -> "Version":
        TRANSITIONS.require(self.state, state, what=f"dataset version {self.id}")
        return replace(self, state=state, **changes)


@dataclass(frozen=True)
class Request:
    """A SubmitDataset; several may ask for one version, and each is answered by its own id."""

    dataset_id: str
    tenant: str
    version: str
    is_answered: bool = False
