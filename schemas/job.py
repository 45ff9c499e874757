"""job.commands and job.events: the event stream of one job."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import (
    Attempt,
    BundleRef,
    CapacityType,
    Count,
    DatasetId,
    DatasetRef,
    DeviceKind,
    FailureClass,
    FileRef,
    JobId,
    Message,
    Reference,
    Seconds,
    Sha256,
    StartFrom,
    Step,
    TenantName,
    TrialOf,
    Value,
)
from schemas.gate import GateSpec
from schemas.specification import JobSpec, Recipe


class LimitDevices(Message):
    """Bound what a tenant's attempts hold at once. Jobs beyond it wait; attempts that run continue."""

    keyed_by = "tenant"
    tenant: TenantName
    devices: Annotated[int, Field(ge=0, lt=2**53)] | None
    """Devices in all pools together; None: as many as there are."""


class PauseReason(StrEnum):
    USER = "user"
    BUDGET = "budget"
    ALERT = "alert"
    PRUNE = "prune"


class StopReason(StrEnum):
    """Why an attempt is being stopped, weakest first."""

    GROW = "grow"
    PREEMPT = "preempt"
    FAILURE = "failure"
    PAUSE = "pause"
    BUDGET = "budget"
    CANCEL = "cancel"


class JobStage(Value):
    """Where a job of several stages is: its attempts train one stage after the other."""

    number: Annotated[int, Field(ge=1)]
    """Place of the stage among all, from 1."""
    num_stages: Annotated[int, Field(ge=1)]
    """Number of stages of the job."""
    first_attempt: Attempt = 1
    """The first attempt that trains this stage."""
    steps_before: Step = 0
    """Steps of the stages before it, as they were planned: its own are counted from there."""
    start: StartFrom | None = None
    """What the stage before has trained, whose weights it begins with; None in the first stage."""

    @property
    def is_last(self) -> bool:
        return self.number == self.num_stages


class StagePlan(Value):
    """A stage of a job as it is trained."""

    recipe: Recipe
    """Recipe of the stage, resolved: no `auto` is left."""
    dataset: DatasetRef
    config_hash: Sha256
    """Hash of the configuration, which covers the stages before it too."""
    num_steps: Count
    """Optimizer steps of this stage."""
    recipe_reasons: dict[str, str] = Field(default={})
    """As in JobQueued."""


class JobMessage(Message):
    keyed_by = "job_id"
    job_id: Reference
    """Id of the job: in a command any text, so that a bad one is refused with a reason; in a fact a JobId."""
    tenant: TenantName


class JobFact(JobMessage):
    job_id: JobId


class SubmitJob(JobMessage):
    """Train a model by the specification."""

    dataset_id: Reference
    """The SubmitDataset that makes this job's dataset."""
    spec: JobSpec
    later_dataset_ids: Annotated[tuple[Reference, ...], Field(max_length=7)] = ()
    """Ids of the datasets of `spec.later_stages`, in their order."""
    retry_of: Reference | None = None
    """The job that this one repeats."""


class CancelJob(JobMessage):
    """End a job; its newest verified checkpoint is kept."""

    reason: Literal["user", "budget", "prune"] = "user"
    """Who asks for it: a person, a budget, or the sweep of which it is a trial, for others are better."""


class PauseJob(JobMessage):
    """Save a checkpoint and give the nodes back until ResumeJob."""

    reason: PauseReason = PauseReason.USER
    """Why, for people."""


class ResumeJob(JobMessage):
    """Continue a paused job from its newest verified checkpoint."""


class RetryJob(JobMessage):
    """Make a new job like a failed or cancelled one."""

    new_job_id: Reference
    """Id that the new job gets."""
    from_checkpoint: bool = False
    """Continue from the newest verified checkpoint of that job, where it left off; else the new job begins again."""


class JobSubmitted(JobFact):
    """The job is accepted; its dataset may not be ready yet."""

    dataset_id: DatasetId
    spec: JobSpec
    submitted_at: datetime
    """When the scheduler took it."""
    retry_of: JobId | None = None
    resume: BundleRef | None = None
    """The checkpoint of the job that this one continues; None: it begins at step 0."""
    later_dataset_ids: tuple[DatasetId, ...] = ()
    """Ids of the datasets of the later stages, in their order."""
    stage: JobStage | None = None
    """The stage that it begins with, where there are several."""


class JobQueued(JobFact):
    """The job waits for capacity."""

    dataset: DatasetRef
    config_hash: Sha256
    num_steps: Count
    """Optimizer steps of the whole job."""
    stages: tuple[StagePlan, ...] = ()
    """All stages, where there are several; dataset and hash above are those of the last."""
    waiting_for: str
    """Why it is not running yet, for people."""
    duplicate_of: JobId | None = None
    """An earlier job of the tenant with the same configuration hash."""
    recipe_reasons: dict[str, str] = Field(default={})
    """For each field that the recipe left open, by its name: its number and why it is this one, for people. Of a job
    of several stages each stage has its own."""


class WaitReason(StrEnum):
    """Why a queued job has not started."""

    ITS_TURN = "its_turn"  # it starts at the scheduler's next look
    NO_NODES = "no_nodes"  # too few devices are free in every pool that suits it, or on no one node of it
    FAR_BEHIND = "far_behind"  # so many are in front of it that nothing else matters yet
    QUOTA = "quota"  # its tenant would have more devices than it may
    SHARE = "share"  # tenants that have less go first
    KEPT_NODES = "kept_nodes"  # the free devices are kept for a larger job in front of it
    NO_CAPACITY = "no_capacity"  # the cluster refused it a moment ago
    NOT_BEFORE = "not_before"  # it backs off
    NO_POOL = "no_pool"  # no pool could ever hold it


class QueuePositionChanged(JobFact):
    """The present place of a queued job. For people: nothing follows from it, and not every step is reported."""

    position: Annotated[int, Field(ge=1)] | None
    """Place in the order in which nodes are handed out: exact up to 10, else rounded up to one digit. None: it is not
    in that order, for it backs off, no pool could hold it, or its tenant has all devices that it may."""
    reason: WaitReason
    waiting_for: str
    """Why it has not started, for people."""
    estimated_start: datetime | None
    """When it will probably start, from how long jobs ran lately; None where that cannot be estimated. It is reported
    again once it is off by more than a minute and more than half of what is left."""


def waits_unreported(wait: timedelta) -> tuple[timedelta, timedelta]:
    """Return the least and the most that a job may wait by the newest estimate while an earlier one is not corrected.

    wait: from now until the start that was reported.
    """
    minute = timedelta(minutes=1)
    return max(timedelta(0), min(wait - minute, wait * 2 / 3)), max(wait + minute, wait * 2)


class JobScheduled(JobFact):
    """An attempt begins: the only message at which the attempt number rises."""

    attempt: Attempt
    spec: JobSpec
    """Specification of the attempt, resolved: no `auto` is left."""
    base_sha: Sha256
    dataset: DatasetRef
    config_hash: Sha256
    resume: BundleRef | None
    pool: str
    """Name of the node pool."""
    capacity_type: CapacityType
    nodes: Count
    """Number of nodes."""
    devices_per_node: Count
    """Training processes on each node, each with a device of its own."""
    grace_seconds: Seconds
    start_deadline: datetime
    """Deadline by which all runners are there, or the attempt has failed."""
    device: DeviceKind | None = None
    """Kind of device that the pool's nodes have; None where its operator does not say."""
    machines: tuple[Count, ...] = ()
    """Numbers of the pool's machines that its nodes are on, by node; none in older messages: any."""
    stage: JobStage | None = None
    """The stage that this attempt trains, where there are several: `spec`, dataset and hash are of this one."""

    @property
    def start_from(self) -> StartFrom | None:
        """What the first step of the job, or of its stage, begins with."""
        return self.stage.start if self.stage and self.stage.start else self.spec.start_from

    @property
    def steps_before(self) -> int:
        return self.stage.steps_before if self.stage else 0


class JobRunning(JobFact):
    """The attempt's nodes train."""

    attempt: Attempt


class JobStopping(JobFact):
    """The attempt is being stopped. Sent again when the reason grows stronger or the deadline earlier."""

    attempt: Attempt
    reason: StopReason
    failure_class: FailureClass | None = None
    deadline: datetime
    """Deadline by which what is trained must be saved."""
    message: str = ""
    """What happened, for people."""


class JobPaused(JobFact):
    """The job holds no node and waits for ResumeJob."""

    attempt: Attempt
    reason: PauseReason
    """Why, for people."""
    resume: BundleRef | None


class JobRequeued(JobFact):
    """An attempt ended and the job waits for the next one."""

    attempt: Attempt
    """The attempt that ended."""
    failure_class: FailureClass
    resume: BundleRef | None
    not_before: datetime
    """No attempt begins earlier."""
    message: str
    """Why the attempt ended, for people."""


class JobStageCompleted(JobFact):
    """A stage is trained and its final bundle verified; the job waits for nodes for the next one."""

    attempt: Attempt
    """The attempt that ended."""
    stage: JobStage
    """The stage that is next."""


class Artifact(JobFact):
    """What the evaluator and the registry need about a trained model."""

    attempt: Attempt
    bundle: BundleRef
    dataset: DatasetRef
    config_hash: Sha256
    base_model: str
    """Name of the base model."""
    base_sha: Sha256
    template_sha256: Sha256
    kind: Literal["adapter", "full"]
    """Whether the weights are an adapter on the base model or a model of their own."""
    rank: Count
    """LoRA rank; 0 for a full model."""
    full_name: str
    """`ft:<base>:<tenant>:<suffix>:` without the short digest, which the registry adds."""
    auto_deploy: bool
    """Whether the version is served once it has passed."""
    holdout: FileRef | None
    gate: GateSpec
    benchmarks: dict[str, Sha256]
    """Digest by name of the benchmarks that the rows were compared with; the gate uses those of its own day."""
    suites: dict[str, Sha256]
    """Digests of the safety suites of that time, by name."""
    kept_leaks: dict[str, Count] = Field(default={})
    """Contaminated rows that were trained on, by source: its check proves nothing. `holdout` for the holdout."""
    started_from: StartFrom | None = None
    """What its training started from; None: the base model."""
    best_valid_loss: float | None = None
    """Validation loss by which `bundle` is the best of its run. None: it is the last one."""
    stages: tuple[StagePlan, ...] = ()
    """All stages that were trained, in order, where the job has several; dataset and hash above are the last
    one's."""
    trial: TrialOf | None = None
    """Its place in a sweep. What such a job has trained is registered and evaluated when its sweep chooses it."""


class JobEvaluating(Artifact):
    """Training is complete and its final bundle verified."""


class JobSucceeded(JobFact):
    """The job ended with its training complete; this names whether the gate passed its model."""

    fine_tuned_model: str | None
    """Full name of the model version; None where no version could be made of what was trained."""
    model_id: str | None
    """Id of the model version; None where none could be made."""
    promoted: bool
    """False: the gate did not pass; the version stays in `dev` and is not served."""
    deployed: bool
    """Whether it is served."""
    message: str
    """How it ended, for people."""


class JobFailed(JobFact):
    """The job ended without a model."""

    failure_class: FailureClass
    code: str
    """Stable word for machines."""
    message: str
    """Why, and what to change."""
    param: str | None = None
    """The field at fault, where one is."""
    attempt: Attempt = 0


class JobCancelled(JobFact):
    """The job ended because somebody asked for it."""

    reason: Literal["user", "budget", "alert", "prune"]
    """Who asked for it: a person, a budget, an alert that the job is to end at, or its sweep."""
    artifact: Artifact | None
    """The newest verified bundle, kept as a `dev` version; None if there is none, and of a trial."""
    last_step: Step = 0
    attempt: Attempt | None = None
    """The last attempt that began, 0 if none did; None in older events."""
