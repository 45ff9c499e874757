"""job.commands and job.events: the story of one job."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from schemas.base import (
    Attempt,
    BundleRef,
    Count,
    DatasetId,
    DatasetRef,
    FailureClass,
    FileRef,
    JobId,
    Message,
    PriceClass,
    Seconds,
    Sha256,
    Step,
    TenantName,
)
from schemas.specification import GateSpec, JobSpec


class PauseReason(StrEnum):
    USER = "user"
    BUDGET = "budget"
    ALERT = "alert"
    PRUNE = "prune"


class StopReason(StrEnum):
    """Why an attempt is being stopped, weakest first."""

    PREEMPT = "preempt"
    FAILURE = "failure"
    PAUSE = "pause"
    BUDGET = "budget"
    CANCEL = "cancel"


class JobMessage(Message):
    keyed_by = "job_id"
    job_id: str
    """In a command any text, so that a bad one is refused with a reason; in a fact a JobId."""
    tenant: TenantName


class JobFact(JobMessage):
    job_id: JobId


class SubmitJob(JobMessage):
    dataset_id: str
    """The SubmitDataset that makes this job's dataset."""
    spec: JobSpec
    retry_of: str | None = None


class CancelJob(JobMessage):
    reason: Literal["user", "budget"] = "user"


class PauseJob(JobMessage):
    reason: PauseReason = PauseReason.USER


class ResumeJob(JobMessage):
    """Continue a paused job from its newest verified checkpoint."""


class RetryJob(JobMessage):
    """Make a new job like a failed or cancelled one."""

    new_job_id: str


class JobSubmitted(JobFact):
    """Accepted; its dataset may not be ready yet."""

    dataset_id: DatasetId
    spec: JobSpec
    submitted_at: datetime
    retry_of: JobId | None = None


class JobQueued(JobFact):
    """Waiting for capacity."""

    dataset: DatasetRef
    config_hash: Sha256
    num_steps: Count
    """Optimizer steps of the whole job."""
    waiting_for: str
    """Why it is not running yet, for people."""
    duplicate_of: JobId | None = None
    """An earlier job of the tenant with the same configuration hash."""


class JobScheduled(JobFact):
    """An attempt begins: the only message at which the attempt number rises."""

    attempt: Attempt
    spec: JobSpec
    """Resolved: no `auto` is left."""
    base_sha: Sha256
    dataset: DatasetRef
    config_hash: Sha256
    resume: BundleRef | None
    pool: str
    price_class: PriceClass
    nodes: Count
    devices_per_node: Count
    grace_seconds: Seconds
    start_deadline: datetime


class JobRunning(JobFact):
    attempt: Attempt


class JobStopping(JobFact):
    """Sent again when the reason grows stronger or the deadline earlier."""

    attempt: Attempt
    reason: StopReason
    failure_class: FailureClass | None = None
    deadline: datetime
    message: str = ""


class JobPaused(JobFact):
    attempt: Attempt
    reason: PauseReason
    resume: BundleRef | None


class JobRequeued(JobFact):
    attempt: Attempt
    """The attempt that ended."""
    failure_class: FailureClass
    resume: BundleRef | None
    not_before: datetime
    message: str


class Artefact(JobFact):
    """What the evaluator and the registry need about a trained model."""

    attempt: Attempt
    bundle: BundleRef
    dataset: DatasetRef
    config_hash: Sha256
    base_model: str
    base_sha: Sha256
    template_sha256: Sha256
    kind: Literal["adapter", "full"]
    rank: Count
    """LoRA rank; 0 for a full model."""
    full_name: str
    """`ft:<base>:<tenant>:<suffix>:` without the short digest, which the registry adds."""
    auto_deploy: bool
    holdout: FileRef | None
    gate: GateSpec
    benchmarks: dict[str, Sha256]
    """Those that the dataset's rows were held against, by name; the gate asks those of its own day."""
    suites: dict[str, Sha256]
    kept_leaks: dict[str, Count] = Field(default={})
    """Contaminated rows that were trained on, by source: its stage proves nothing. `holdout` for the holdout."""


class JobEvaluating(Artefact):
    """Training is complete and its final bundle verified."""


class JobSucceeded(JobFact):
    fine_tuned_model: str | None
    """Full name of the model version; None where no version could be made of what was trained."""
    model_id: str | None
    promoted: bool
    """False: the gate did not pass; the version stays in `dev` and is not served."""
    deployed: bool
    message: str


class JobFailed(JobFact):
    failure_class: FailureClass
    code: str
    message: str
    param: str | None = None
    attempt: Attempt = 0


class JobCancelled(JobFact):
    reason: Literal["user", "budget"]
    artefact: Artefact | None
    """The newest verified bundle, kept as a `dev` version; None if there is none."""
    last_step: Step = 0
    attempt: Attempt | None = None
    """The last one that began, 0 if none did; None in older events."""
