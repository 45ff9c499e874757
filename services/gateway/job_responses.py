"""What routes of jobs answer. See `responses`."""

from typing import Literal

from schemas.alert import AlertRule
from schemas.artifacts import ResumeCertificate
from schemas.base import Count, FailureClass, StartFrom, Step, TrialOf
from schemas.evaluation import CheckName, Criterion
from schemas.job import WaitReason
from schemas.lifecycle import JobState
from schemas.specification import Auto
from schemas.training import StepMetrics
from services.gateway.decide import GateStatus, JobStatus
from services.gateway.model import AttemptPreparation, JobMemory, JobWarning, JsonObject
from services.gateway.responses import Answer, BaseModelFacts, Progress, Resource, Time
from services.gateway.training_time import EstimatedTime


class Hyperparameters(Answer):
    n_epochs: int | Auto
    batch_size: int | Auto
    learning_rate_multiplier: float | Auto


class DpoHyperparameters(Hyperparameters):
    beta: float | Auto


class SupervisedMethod(Answer):
    hyperparameters: Hyperparameters


class DpoMethod(Answer):
    hyperparameters: DpoHyperparameters


class JobMethod(Answer):
    """The job's type of training, with the hyperparameters of that type."""

    type: Literal["supervised", "dpo"]
    supervised: SupervisedMethod | None
    dpo: DpoMethod | None


class JobProblem(Answer):
    """Why a job has no usable model; nulls where nothing is wrong."""

    code: str | None
    message: str | None
    param: str | None


class JobFailure(JobProblem):
    failure_class: FailureClass


class FailingCriterion(Criterion):
    """A number that missed its rule."""

    check: CheckName
    """The gate's check that it belongs to."""


class Gate(Answer):
    """The newest verdict on the job's model."""

    status: GateStatus
    reason: str
    eval_id: str | None
    failing_criteria: tuple[FailingCriterion, ...]


class Queue(Answer):
    """Place of a queued job, as the scheduler reported it last."""

    position: int | None
    """Place in the queue: exact up to 10, else rounded up to one digit."""
    reason: WaitReason
    estimated_start: Time | None
    as_of: Time


class RecordedStep(StepMetrics):
    attempt: Count
    """The newest attempt that made the step."""
    valid_loss: float | None
    """Loss after the step on some windows of the validation file, where the recipe says to measure it there."""
    full_valid_loss: float | None
    """Loss after the step on all windows of the validation file."""
    perplexity: float | None = None
    """Perplexity on the validation file, by `full_valid_loss` or else `valid_loss`; none with dpo."""


class Stage(Answer):
    """A stage of the job's training; each starts from what the one before has trained."""

    number: Count
    """Number of the stage, from 1."""
    status: Literal["waiting", "present", "trained"]
    training_file: str
    validation_file: str | None
    dataset_id: str
    recipe: JsonObject
    """The recipe as in the request; without `auto` once the job is queued."""
    recipe_reasons: dict[str, str]
    """As in the job's."""
    dataset_version: str | None
    """Version of the dataset. This and the next three are None until the datasets of all stages are ready."""
    config_hash: str | None
    """Covers the stages before it too."""
    steps_before: Count | None
    """The step of the job after which its own begin."""
    num_steps: Count | None


class OpenAlert(Answer):
    """What looks wrong with the present attempt; `/v1/alerts` has those that have passed too."""

    rule: AlertRule
    message: str
    raised_at: Time


class JobExtensions(Answer):
    state: JobState
    attempt: Count
    stage: Count | None
    """Number of the stage that it is in; None where it has no stages."""
    stages: tuple[Stage, ...]
    """Stages of a job that has several."""
    waiting_for: str
    queue: Queue | None
    warnings: tuple[JobWarning, ...]
    alerts: tuple[OpenAlert, ...]
    alert_actions: JsonObject
    """What each alert does, as `alerts` of the request."""
    num_steps: Count | None
    last_step: Step
    progress: Progress | None
    newest_step: RecordedStep | None = None
    """While the job trains: the numbers of the newest step that is recorded."""
    dataset_id: str | None
    dataset_version: str | None
    config_hash: str | None
    duplicate_of: str | None
    retry_of: str | None
    start_from: StartFrom | None
    """What `model` names, where it is no base model."""
    trial: TrialOf | None
    """Its place in a sweep; None where it is in none."""
    model_id: str | None
    is_deployed: bool
    estimated_memory: JobMemory | None
    estimated_times: tuple[EstimatedTime, ...]
    """What it would need in each pool that could take it and in which attempts have ended; once it is scheduled, in
    the one that it got."""
    preparation: AttemptPreparation | None
    resume_certificate: ResumeCertificate | None
    cost_usd: str
    """US dollars that the tenant pays, as a decimal number."""
    running_cost_usd: str | None
    """US dollars that the attempt which holds nodes has cost so far; they are charged when it ends, unless it ends
    for no fault of the tenant."""
    max_cost: str | None
    """US dollars that the tenant allows for the job; None: no limit."""
    uncharged_cost_usd: str
    """US dollars of attempts that ended for no fault of the tenant."""
    has_holdout: bool
    recipe: JsonObject
    """The recipe, as in the request; without `auto` once an attempt is scheduled."""
    recipe_reasons: dict[str, str]
    """Once the job is queued, for each field that the recipe left open: its number and why it is this one. Where the
    job has stages, each has its own."""
    gate: Gate
    is_usable: bool
    """Whether the model answers, or would after a deployment where the job asked for none."""


class Job(Resource):
    object: Literal["fine_tuning.job"]
    created_at: Time
    finished_at: Time | None
    estimated_finish: Time | None
    """When its training will end, while it trains or has a place in the queue, as far as that can be estimated."""
    model: str | None
    """The name that the request gave: a base model, or what an earlier job trained."""
    fine_tuned_model: str | None
    """Name of the version, also of one that the gate did not pass."""
    organization_id: str
    status: JobStatus
    training_file: str | None
    validation_file: str | None
    result_files: tuple[str, ...]
    trained_tokens: Count | None
    seed: int
    hyperparameters: Hyperparameters
    method: JobMethod
    integrations: tuple[()]
    metadata: dict[str, str]
    error: JobFailure | JobProblem
    retune: JobExtensions


class NewJobExtensions(JobExtensions):
    base_model: BaseModelFacts


class NewJob(Job):
    """The answer to a submit."""

    retune: NewJobExtensions


class JobEvent(Resource):
    object: Literal["fine_tuning.job.event"]
    created_at: Time
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: JsonObject
    """The event's fields with its `type` and `event_id`, or numbers of a step."""


class CheckpointMetrics(Answer):
    """What was measured; null where nothing was."""

    step: Step
    train_loss: float | None
    valid_loss: float | None
    served_valid_loss: float | None = None
    """Loss on the same windows as `valid_loss`, with qlora or quantization: of the adapter on the base as it is
    served, while the other losses are on the base in 4 bits. Measured for the last checkpoint alone."""
    full_valid_loss: float | None
    perplexity: float | None = None
    """Perplexity on the validation file, by `full_valid_loss` or else `valid_loss`; none with dpo."""
    start_perplexity: float | None = None
    """Perplexity on the validation file before the first step, with cpt, beside `full_valid_loss`."""
    reward_margin: float | None = None
    """Mean by which chosen answers of the validation file have a greater reward than rejected ones, with dpo."""
    reward_accuracy: float | None = None
    """Share of the validation file's pairs whose chosen answer has the greater reward."""


class CheckpointExtensions(Answer):
    attempt: Count
    kind: str
    state: str
    manifest_sha256: str
    is_best: bool
    """Whether it has the lowest loss on the validation file so far, where the recipe asks for the best one
    (`load_best_model_at_end`): it becomes the model."""


class Checkpoint(Resource):
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: Time
    fine_tuning_job_id: str
    fine_tuned_model_checkpoint: str
    step_number: Step
    metrics: CheckpointMetrics
    retune: CheckpointExtensions


class StepList(Answer):
    object: Literal["list"]
    data: tuple[RecordedStep, ...]
    has_more: bool


class Log(Answer):
    object: Literal["log"]
    job_id: str
    attempt: int
    node: int
    text: str
    next: int
    """What to ask `after` next time."""
