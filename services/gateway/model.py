"""Rows of the gateway's tables by the names of their columns, as `store` and `readmodels` read them. Pure."""

from datetime import datetime
from decimal import Decimal
from typing import Literal

from pydantic import Field, JsonValue

from schemas.alert import AlertRule
from schemas.artifacts import DatasetCounts, DatasetFiles, ResumeCertificate
from schemas.base import BundleRef, Count, FailureClass, FileRef, Seconds, StartFrom, TrialOf, Value
from schemas.capabilities import BaseCapabilities
from schemas.dataset import RowProblem
from schemas.deployment import ReplicaAddress
from schemas.evaluation import BenchmarkKind, CheckResult, Evidence, Expects
from schemas.job import JobSubmitted, StagePlan, SubmitJob, WaitReason
from schemas.lifecycle import JobState
from schemas.memory import MemoryEstimate
from schemas.specification import DatasetFormat, JobSpec, Recipe, StageSpec
from schemas.training import BundleMetrics, Preparation
from services.gateway.training_time import EstimatedTime

JsonObject = dict[str, JsonValue]

METRICS = "metrics"
"""Type of the timeline's events with numbers."""


class Row(Value):
    """A row, or a jsonb column of one. A field with a default may be missing in JSON that an older release wrote."""


class StoredFile(Row):
    file_id: str
    tenant: str
    sha256: str
    size_bytes: Count
    filename: str
    purpose: str
    format: DatasetFormat | None
    num_rows: Count | None
    """Lines with something in them; None for files that were uploaded before they were counted."""
    created_at: datetime

    @property
    def ref(self) -> FileRef:
        return FileRef(
            file_id=self.file_id, sha256=self.sha256, size_bytes=self.size_bytes, filename=self.filename
        )


class Upload(Row):
    """A file that comes in parts."""

    upload_id: str
    tenant: str
    filename: str
    purpose: str
    size_bytes: Count
    """Bytes of all parts together, as announced."""
    state: Literal["pending", "completed", "cancelled"]
    file_id: str | None
    created_at: datetime


class UploadPart(Row):
    file_id: str
    sha256: str
    size_bytes: Count


class IdempotentRequest(Row):
    body_sha256: str
    response: JsonObject | None


class SubmittedSpec(Row):
    """What is shown of a JobSpec; without any field until JobSubmitted is heard."""

    base_model: str | None = None
    base_sha: str | None = None
    start_from: StartFrom | None = None
    training_file: FileRef | None = None
    validation_file: FileRef | None = None
    holdout: FileRef | None = None
    metadata: dict[str, str] = Field(default={})
    suffix: str = ""
    auto_deploy: bool = True
    allow_ungated: bool = False
    recipe: JsonObject = Field(default={})
    resources: JsonObject = Field(default={})
    gate: JsonObject = Field(default={})
    alerts: JsonObject | None = None
    max_cost: Decimal | None = None
    trial: TrialOf | None = None

    @property
    def seed(self) -> int:
        seed = self.recipe.get("seed", 0)
        assert isinstance(seed, int), "a recipe's seed is a number"
        return seed


class SubmittedStage(Row):
    """A stage of a job that has several, as it was asked for."""

    recipe: JsonObject
    training_file: FileRef
    validation_file: FileRef | None
    dataset_id: str

    @classmethod
    def all_of(cls, submitted: SubmitJob | JobSubmitted) -> "tuple[SubmittedStage, ...]":
        """Return the stages in their order; none where the job has no later ones."""
        if not submitted.later_dataset_ids:
            return ()
        dataset_ids = (submitted.dataset_id, *submitted.later_dataset_ids)
        pairs = zip(submitted.spec.by_stage, dataset_ids, strict=True)
        return tuple(cls(dataset_id=dataset_id, **_files_and_recipe(spec)) for spec, dataset_id in pairs)


def _files_and_recipe(spec: JobSpec) -> JsonObject:
    return spec.model_dump(mode="json", include={*StageSpec.model_fields})


class JobWarning(Row):
    code: str
    """Stable word for machines."""
    message: str
    """What, where, found, expected."""
    param: str
    """The parameter at fault."""


class JobFailure(Row):
    code: str
    message: str
    param: str | None = None
    failure_class: FailureClass


class QueueEntry(Row):
    position: int | None
    reason: WaitReason
    waiting_for: str
    estimated_start: datetime | None
    as_of: datetime


class EvalProgress(Row):
    activity: str
    suite: str
    side: Literal["base", "candidate"] | None
    items_done: Count
    items_total: Count | None
    seconds_left: Seconds | None


class JobVerdict(Row):
    """The newest evaluation of a job's model that has ended, or else the one that runs."""

    eval_id: str
    outcome: str
    reason: str
    checks: tuple[CheckResult, ...]
    progress: EvalProgress | None = None


class JobMemory(MemoryEstimate):
    """What each device needs by estimate, with what the training process is about to choose there."""

    max_seq_length: Count
    """Length of a window of the job's dataset."""
    pool: str | None = None
    """Pool for whose devices it is chosen; None where no pool says what its devices have: then the estimate is the
    least that the recipe allows."""


class AttemptPreparation(Preparation):
    """What an attempt reported before its first step."""

    attempt: Count
    """The attempt that reported it."""


class Step(Row):
    step: int
    attempt: int
    metrics: JsonObject
    """The other fields of StepMetrics."""
    validation: BundleMetrics | None
    """What was measured after it, where the recipe names it."""


class OpenAlert(Row):
    rule: AlertRule
    message: str
    raised_at: datetime
    is_muted: bool
    """Whether nobody is notified by its rule, of the job or of all."""


class Job(Row):
    job_id: str
    tenant: str
    state: JobState
    spec: SubmittedSpec
    dataset_id: str | None
    dataset_version: str | None
    config_hash: str | None
    duplicate_of: str | None
    retry_of: str | None
    attempt: int
    stage: int | None
    """Number of the stage that is trained, from 1; None where it has no stages."""
    stages: tuple[SubmittedStage, ...]
    stage_plans: tuple[StagePlan, ...]
    """Plans of all stages, once it is queued."""
    recipe_reasons: dict[str, str]
    num_steps: int | None
    last_step: int
    valid_loss: float | None
    trained_tokens: int | None
    waiting_for: str
    queue_entry: QueueEntry | None
    fine_tuned_model: str | None
    model_id: str | None
    is_promoted: bool | None
    is_deployed: bool
    ending: str
    warnings: tuple[JobWarning, ...]
    error: JobFailure | None
    estimated_memory: JobMemory | None
    estimated_times: tuple[EstimatedTime, ...] = ()
    """What it would need in each pool that could take it; once it is scheduled, in the one that it got."""
    preparation: AttemptPreparation | None
    certificate: ResumeCertificate | None
    cost: Decimal
    uncharged_cost: Decimal
    running_cost: Decimal | None = None
    """Cost so far of the attempt that holds nodes."""
    is_late: bool = False
    """Whether the attempt holds its nodes for longer than the whole job was estimated to take at most."""
    created_at: datetime
    finished_at: datetime | None
    result_files: tuple[str, ...]
    evaluation: JobVerdict | None
    newest_steps: tuple[Step, ...] = ()
    """While it trains; the newest first."""
    alerts: tuple[OpenAlert, ...] = ()
    version: str = ""
    """Another one after every write of its row."""


class JobCourse(Row):
    """What steps are counted of, and what is measured on the way."""

    num_steps: int | None
    """Steps of the whole job; None before it is queued."""
    spec: SubmittedSpec
    stage_plans: tuple[StagePlan, ...] = ()

    def recipe_at(self, step: int) -> Recipe:
        """Return the recipe of the stage that makes the step."""
        last = 0
        for plan in self.stage_plans:
            last += plan.num_steps
            if step <= last:
                return plan.recipe
        return Recipe.model_validate(self.spec.recipe)


class JobOwner(Row):
    tenant: str
    attempt: int


class JobEvent(Row):
    id: int
    job_id: str
    event_id: str
    type: str
    level: Literal["info", "warn", "error"]
    message: str
    data: JsonObject
    created_at: datetime


class Checkpoint(Row):
    job_id: str
    attempt: int
    step: int
    manifest_sha256: str
    kind: str
    metrics: BundleMetrics
    state: str
    created_at: datetime
    is_best: bool
    """Whether it is the best checkpoint of the job, where the recipe asks for the best one."""


class MeasuredStep(Step):
    measured: BundleMetrics | None
    """Numbers of the newest bundle that was written at this step."""


class RecordedSteps(Row):
    """How far the steps of a job are recorded."""

    last_step: int
    has_results: bool
    last_recorded: int


class DatasetDetail(Row):
    """What the facts of a dataset hold; fields that none of them has are not set."""

    base_sha: str | None = None
    manifest_sha256: str | None = None
    template_sha256: str | None = None
    counts: DatasetCounts | None = None
    benchmarks: dict[str, str] | None = None
    """Digest of each registered benchmark that the rows were checked against, by name."""
    suites: dict[str, str] | None = None
    """Digest of each safety suite registered at that time, by name."""
    files: DatasetFiles | None = None
    code: str | None = None
    """Why it was refused, for machines."""
    message: str | None = None
    """Why it was refused, for people."""
    problems: tuple[RowProblem, ...] = ()
    report_key: str | None = None
    dataset_ids: tuple[str, ...] = ()
    """Datasets that were deleted with this one, which have the same version."""


class Dataset(Row):
    dataset_id: str
    tenant: str
    state: str
    dataset_version: str | None
    detail: DatasetDetail
    created_at: datetime


class DatasetAnswer(Row):
    """The fact that answered a dataset's request."""

    id: str
    time: datetime
    type: str
    data: JsonObject


class SuiteDetail(Row):
    """Details of a suite: a benchmark has the first three fields, a safety suite the last one."""

    kind: BenchmarkKind | None = None
    num_fewshot: Count | None = None
    margin_points: float | None = None
    expects: Expects | None = None


class Suite(Row):
    name: str
    is_benchmark: bool
    digest: str
    rows: Count
    detail: SuiteDetail
    registered_at: datetime

    @property
    def check(self) -> Literal["benchmark", "safety", "over_refusal"]:
        """The check of the gate that asks it."""
        if self.is_benchmark:
            return "benchmark"
        return "over_refusal" if self.detail.expects == "answer" else "safety"


class BaseModelDetail(Row):
    manifest_sha256: str
    source: str
    """Where its files came from."""
    template_sha256: str
    context_tokens: Count
    """Longest sequence that it is built for."""
    num_parameters: Count
    """Parameters of the model."""
    training_template_sha256: str | None = None
    """sha256 of the template that marks the answers in training; None: they are taken from the model's own."""
    capabilities: BaseCapabilities | None = None
    """What the model can do; None: it was registered before this was looked at."""


class RegisteredBase(Row):
    name: str
    base_sha: str
    detail: BaseModelDetail
    registered_at: datetime


class LineageDetail(Row):
    config_hash: str | None = None
    template_sha256: str | None = None
    training_template_sha256: str | None = None
    bundle: BundleRef | None = None
    kind: Literal["adapter", "full"] | None = None
    rank: Count | None = None
    started_from: StartFrom | None = None
    best_valid_loss: float | None = None
    stages: tuple[StagePlan, ...] = ()


class ModelVersion(Row):
    model_id: str
    tenant: str
    full_name: str
    digest: str
    job_id: str
    base_model: str
    base_sha: str
    dataset_version: str
    stage: str
    eval_id: str | None
    is_stale: bool
    has_holdout: bool | None
    approved_by: str | None
    approval_reason: str
    accepted_without_holdout: bool
    detail: LineageDetail
    created_at: datetime


class Evaluation(Row):
    eval_id: str
    tenant: str
    job_id: str
    model_id: str
    outcome: str
    reason: str
    checks: tuple[CheckResult, ...]
    number: int
    evidence: Evidence | None
    progress: EvalProgress | None
    created_at: datetime

    @property
    def measured_by(self) -> str:
        """The evaluation that made the numbers: this one, or an earlier one whose numbers could not but be equal."""
        return (self.evidence and self.evidence.measured_by) or self.eval_id


class Route(Row):
    tenant: str
    slot: str
    generation: int
    model_id: str
    digest: str
    state: str
    reason: str
    served_name: str
    replicas: tuple[ReplicaAddress, ...]
    updated_at: datetime


class Replica(Row):
    replica_id: str
    incarnation: str
    url: str
    served_base: str


class Outcome(Row):
    """The first fact or refusal that a command caused."""

    event_type: str
    payload: JsonObject


class Refusal(Row):
    id: int
    command_id: str
    command: str
    subject_id: str
    code: str
    message: str
    param: str | None
    refused_at: datetime


class KafkaUser(Row):
    name: str
    tenant: str | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    group_prefix: str
    changed_at: datetime
