"""checkpoint.events: the verdict of another service on each bundle."""

from datetime import datetime

from schemas.base import BestBundle, BundleRef, Bytes, JobId, Message, Step, TenantName


class CheckpointFact(Message):
    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName


class CheckpointVerified(CheckpointFact):
    """Every part was read back and has the size and sha256 of the manifest."""

    bundle: BundleRef
    size_bytes: Bytes
    best: BestBundle | None = None
    """The best bundle of its run so far, as its writer says: verified too."""


class CheckpointCorrupt(CheckpointFact):
    """The bundle differs from its manifest, and nothing resumes from it."""

    bundle: BundleRef
    message: str
    """What was found and expected, and where."""


class CheckpointExpired(CheckpointFact):
    """Retention deleted the bundle.

    Two newer verified bundles remain and it is the best of neither, or the job ended long ago.
    """

    bundle: BundleRef


class CheckpointOverdue(CheckpointFact):
    """A running attempt wrote no bundle for three intervals."""

    attempt: int
    """The attempt that runs."""
    last_step: Step
    last_written_at: datetime | None
    """When its last bundle was written; None where it wrote none."""
