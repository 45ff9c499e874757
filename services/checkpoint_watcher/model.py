"""What the watcher knows of a job's checkpoints."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from schemas.base import BestBundle, BundleRef


class CheckpointState(StrEnum):
    WRITTEN = "written"  # the manifest is there, the verdict is not
    VERIFIED = "verified"
    CORRUPT = "corrupt"
    EXPIRING = "expiring"  # chosen by retention; its bytes are being deleted
    EXPIRED = "expired"


@dataclass(frozen=True)
class Checkpoint:
    job_id: str
    tenant: str
    bundle: BundleRef
    state: CheckpointState
    best: BestBundle | None = None
    """The best one of its run so far, as its writer says; it may be itself."""

    @property
    def named_best(self) -> BundleRef | None:
        """The best checkpoint where it is another one of the same job: whoever resumes from this one must have it."""
        best = self.best.bundle if self.best else None
        return None if best is None or best == self.bundle or best.job_id is not None else best

    @property
    def age(self) -> tuple[int, int]:
        """(attempt, step): the newest checkpoint is the one with the greatest, everywhere."""
        return self.bundle.attempt, self.bundle.step


@dataclass(frozen=True)
class Attempt:
    """The job's present attempt."""

    job_id: str
    tenant: str
    attempt: int
    interval_seconds: float
    resume: tuple[int, int] | None
    """(attempt, step) of the bundle that the attempt began from; it must not be deleted."""
    is_open: bool
    last_step: int
    last_written_at: datetime | None
    started_at: datetime | None
