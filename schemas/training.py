"""agent.directives, agent.reports, training.events and run.metrics: what happens on the nodes."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from schemas.artefacts import ResumeCertificate
from schemas.base import (
    Attempt,
    BundleRef,
    Count,
    DatasetRef,
    FailureClass,
    JobId,
    Message,
    Seconds,
    Sha256,
    Step,
    TenantName,
    Value,
)
from schemas.job import StopReason
from schemas.specification import Recipe


class BundleKind(StrEnum):
    PERIODIC = "periodic"
    EMERGENCY = "emergency"  # written because of a stop
    FINAL = "final"


class Member(Value):
    """One runner of the gang."""

    node_index: Count
    host: str
    port: int
    """Free port on the host; that of node 0 is the rendezvous."""


class AttemptMessage(Message):
    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    attempt: Attempt


class StartTraining(AttemptMessage):
    """Directive: every runner of the gang is here; start the child."""

    recipe: Recipe
    base_sha: Sha256
    dataset: DatasetRef
    config_hash: Sha256
    resume: BundleRef | None
    nodes: Count
    devices_per_node: Count
    members: tuple[Member, ...]
    """In rank order; the first one's address is the rendezvous."""
    grace_seconds: Seconds


class StopTraining(AttemptMessage):
    """Directive: save at the next step boundary, upload, report and exit before the deadline."""

    reason: StopReason
    deadline: datetime


class RunnerReport(AttemptMessage):
    """A claim by one runner. Facts are made of claims after the epoch check."""

    node_index: Count


class RunnerStarted(RunnerReport):
    host: str
    port: int
    node_id: str


class RunnerHeartbeat(RunnerReport):
    step: Step
    state: Literal["waiting", "fetching", "training", "stopping"]


class StepReached(RunnerReport):
    """The child has done the first step of this attempt, or went on after a resume."""

    step: Step
    num_steps: Count
    certificate: ResumeCertificate | None = None
    packing: Literal["proved", "refused", "off"] = "off"


class BundleUploaded(RunnerReport):
    bundle: BundleRef
    kind: BundleKind
    metrics: dict[str, float]


class RunnerStopped(RunnerReport):
    """The last report of a runner."""

    outcome: Literal["completed", "stopped", "failed"]
    failure_class: FailureClass | None = None
    message: str = ""
    last_step: Step
    bundle: BundleRef | None = None
    exit_code: int | None = None


class TrainingStarted(AttemptMessage):
    """The gang is complete; sent at the barrier."""

    members: tuple[Member, ...]


class TrainingResumed(AttemptMessage):
    """The first step after a resume was compared with what the interrupted run expected."""

    certificate: ResumeCertificate


class CheckpointWritten(AttemptMessage):
    """The bundle's manifest is in S3; nobody has verified it yet."""

    bundle: BundleRef
    kind: BundleKind
    metrics: dict[str, float]


class TrainingStopped(AttemptMessage):
    """The attempt's last fact, when it did not complete."""

    reason: str
    """What was asked: a StopReason, or `unasked`, or `failure`."""
    last_step: Step
    bundle: BundleRef | None


class TrainingCompleted(AttemptMessage):
    """The attempt's last fact, when every step was done."""

    bundle: BundleRef
    last_step: Step


class TrainingFailed(AttemptMessage):
    failure_class: FailureClass
    message: str
    last_step: Step = 0


class StepMetrics(Value):
    step: Step
    time: datetime
    loss: float
    learning_rate: float
    grad_norm: float
    num_tokens: Count
    tokens_per_second: float
    memory_bytes: Count
    epoch: float
    mfu: float | None = None
    """Model FLOPs utilisation, 0..1; None on a CPU."""


class StepsRecorded(AttemptMessage):
    """A batch of step metrics. May be lost; gates nothing."""

    steps: tuple[StepMetrics, ...]
