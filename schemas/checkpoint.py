"""checkpoint.events: the verdict of another service on each bundle."""

from datetime import datetime

from schemas.base import BundleRef, Bytes, JobId, Message, Step, TenantName


class CheckpointFact(Message):
    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName


class CheckpointVerified(CheckpointFact):
    """Every part was read back and has the size and sha256 of the manifest."""

    bundle: BundleRef
    size_bytes: Bytes


class CheckpointCorrupt(CheckpointFact):
    bundle: BundleRef
    message: str


class CheckpointExpired(CheckpointFact):
    """Deleted by retention; two newer verified bundles remain."""

    bundle: BundleRef


class CheckpointOverdue(CheckpointFact):
    """A running attempt wrote no bundle for three intervals."""

    attempt: int
    last_step: Step
    last_written_at: datetime | None
