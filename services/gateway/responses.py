"""What routes answer: OpenAI's objects and ours. The reference at `/openapi.json` is derived from these classes.

A field with a default is left out of an answer where it does not apply.
"""

from typing import Generic, Literal, TypeVar

from pydantic import ConfigDict

from schemas.base import BundleRef, Count, Seconds, StartFrom, Value
from schemas.evaluation import CheckResult, Evidence
from schemas.job import StagePlan
from schemas.node import PoolCapacityChanged
from schemas.specification import DatasetFormat
from schemas.sweep import Algorithm, Parameter, Parameters, PruningSpec, SweepState, TrialState
from services.gateway.memory import MethodMemory
from services.gateway.model import (
    BaseModelDetail,
    DatasetDetail,
    JsonObject,
    SuiteDetail,
)
from services.gateway.quotas import Quotas

Time = int
"""Seconds since 1970."""


class Answer(Value):
    """A JSON object of an answer."""


class Resource(Answer):
    """A thing with an id, which pages are continued by."""

    id: str


T = TypeVar("T", bound=Resource)


class ErrorDetail(Answer):
    message: str
    """What, where, found, expected."""
    type: str
    """Family of the error, as OpenAI names them."""
    param: str | None
    """The parameter at fault, where one is."""
    code: str | None
    """Stable word for machines."""


class ErrorBody(Answer):
    """Every answer that is no success."""

    error: ErrorDetail


class Page(Answer, Generic[T]):
    """A part of a list; the next one begins `after` its `last_id`."""

    # pydantic looks for docstrings of `Page[File]` where that is written, and may find no class there.
    model_config = ConfigDict(use_attribute_docstrings=False)

    object: Literal["list"]
    data: tuple[T, ...]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileExtensions(Answer):
    sha256: str
    format: DatasetFormat | None


class File(Resource):
    object: Literal["file"]
    bytes: Count
    created_at: Time
    filename: str
    purpose: str
    status: Literal["processed"]
    expires_at: Time | None
    retune: FileExtensions


class FileRemoval(Answer):
    status: Literal["deleting"]
    needed_by: list[str]
    """What still needs its bytes."""


class DeletedFile(Resource):
    object: Literal["file"]
    deleted: bool
    """Whether its bytes are gone too."""
    retune: FileRemoval | None = None


class Upload(Resource):
    """A file that comes in parts."""

    object: Literal["upload"]
    bytes: Count
    created_at: Time
    expires_at: Time
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: File | None
    """Once it is completed and as long as it is not deleted."""


class UploadPart(Resource):
    object: Literal["upload.part"]
    created_at: Time
    upload_id: str


class BaseModelFacts(BaseModelDetail):
    """What the registration of a base model recorded."""

    base_sha: str
    memory: dict[str, MethodMemory] | None
    """Estimates by method; None where the model's shape was not looked at."""


class BaseModelExtensions(BaseModelFacts):
    kind: Literal["base"]


class BaseModel(Resource):
    object: Literal["model"]
    created: Time
    owned_by: str
    retune: BaseModelExtensions


class Approval(Answer):
    has_holdout: bool | None
    """Whether it was compared on rows of its own task; None before it passed."""
    approved_by: str | None
    approval_reason: str
    accepted_without_holdout: bool


class FineTunedModelExtensions(Approval):
    kind: Literal["fine-tuned"]
    model_id: str
    stage: str
    digest: str
    job_id: str
    is_stale: bool


class FineTunedModel(Resource):
    object: Literal["model"]
    created: Time
    owned_by: str
    root: str
    parent: str
    retune: FineTunedModelExtensions


class DeletedModel(Resource):
    object: Literal["model"]
    deleted: bool


AnyModel = BaseModel | FineTunedModel


class ModelPage(Answer):
    """Base models by name, then the tenant's versions, newest first."""

    object: Literal["list"]
    data: tuple[AnyModel, ...]
    has_more: bool
    first_id: str | None
    last_id: str | None


class LineageVerdict(Answer):
    eval_id: str
    outcome: str
    reason: str
    evidence: Evidence | None


class Lineage(Approval):
    object: Literal["model.lineage"]
    model: str
    model_id: str
    digest: str
    stage: str
    base_model: str
    base_sha: str
    dataset_version: str
    job_id: str
    eval_id: str | None
    config_hash: str | None
    template_sha256: str | None
    training_template_sha256: str | None
    bundle: BundleRef | None
    kind: Literal["adapter", "full"] | None
    rank: Count | None
    started_from: StartFrom | None
    """The version or checkpoint that its training started from; None: the base model."""
    best_valid_loss: float | None
    """Loss by which its checkpoint, `bundle`, is the best of its run; null: the checkpoint is the last one."""
    stages: tuple[StagePlan, ...]
    """Stages that its job trained, in their order, where there are several; dataset and hash are the last one's."""
    evaluation: LineageVerdict | None


class Progress(Answer):
    """How far training or the gate is."""

    activity: str
    """`training`, `loading`, or the gate's check that is measured."""
    part: str
    side: Literal["base", "candidate"] | None
    done: Count
    total: Count | None
    unit: Literal["steps", "items"]
    seconds_left: Seconds | None
    """Estimate from the pace of the newest steps or items; None before there are two."""
    valid_loss: float | None = None
    """Newest loss on the whole validation file, in training, where the recipe says when to measure it."""


class Evaluation(Resource):
    object: Literal["evaluation"]
    created_at: Time
    job_id: str
    model_id: str
    outcome: str
    reason: str
    checks: tuple[CheckResult, ...]
    number: Count
    evidence: Evidence | None
    progress: Progress | None


class EvaluationItem(Resource):
    """What was asked and expected, and what both sides answered, as the evaluator wrote it."""

    model_config = ConfigDict(extra="allow")

    check: str | None = None
    suite: str | None = None
    line: int | None = None
    outcome: str | None = None
    prompt: str | None = None
    expected: str | None = None
    base_answer: str | None = None
    answer: str | None = None
    base_score: float | None = None
    score: float | None = None


class EvaluationLog(Answer):
    object: Literal["evaluation.log"]
    eval_id: str
    text: str


class Suite(Resource):
    """What every gate asks; its items are nobody's to read."""

    object: Literal["suite"]
    name: str
    check: Literal["benchmark", "safety", "over_refusal"]
    rows: Count
    digest: str
    registered_at: Time
    retune: SuiteDetail


class Dataset(DatasetDetail, Resource):
    object: Literal["dataset"]
    created_at: Time
    status: str
    version: str | None


class DeletedDataset(Resource):
    object: Literal["dataset"]
    deleted: bool
    """False while a job uses its version, and as long as its bytes are being deleted."""


class Trial(Answer):
    """One configuration of a sweep."""

    number: Count
    state: TrialState
    job_id: str | None
    """The job that trains it; None of a duplicate, which is not run."""
    parameters: Parameters
    valid_loss: float | None
    """What it is compared by; of a trial that was pruned the lowest so far, of one that runs None."""
    duplicate_of: Count | None
    cost_usd: str
    message: str


class SearchFields(Answer):
    algorithm: Algorithm
    parameters: dict[str, Parameter]
    num_trials: Count
    concurrency: Count
    seed: int
    pruning: PruningSpec | None
    max_cost: str | None
    max_failed_trials: Count


class Sweep(Resource):
    object: Literal["sweep"]
    created_at: Time
    finished_at: Time | None
    name: str
    state: SweepState
    model: str
    """The base model."""
    search: SearchFields
    trials_by_state: dict[str, Count]
    best: Trial | None
    """The best trial, while trials run the best so far; only that of a sweep which succeeded goes to the gate."""
    fine_tuned_model: str | None
    """Name of the best trial's version, once it is registered."""
    gate: str
    """What the gate finds of it: `passed`, `failed`, `inconclusive`, `running`, or empty."""
    cost_usd: str
    """US dollars that the tenant pays for all trials, as a decimal number."""
    message: str
    """How it ended, or why it is stopping."""
    trials: tuple[Trial, ...] = ()
    """Every trial, of a sweep that is asked for by its id."""


class Refusal(Resource):
    object: Literal["command.refusal"]
    created_at: Time
    command: str
    command_id: str
    subject_id: str
    code: str
    message: str
    param: str | None


class CostSums(Answer):
    """What attempts cost, of those that have ended."""

    attempts: Count
    device_hours: float
    """Hours of all devices that they had."""
    cost_usd: str
    """US dollars that they cost, whoever pays, as a decimal number."""
    charged_usd: str
    """US dollars that their tenant pays."""
    free_usd: str
    """US dollars that the tenant does not pay, for they ended for no fault of it."""
    spot_waste_usd: str
    """US dollars, among those that are free, of spot nodes that were taken back."""
    usd_per_device_hour: str | None


class CostGroup(CostSums):
    name: str | None
    """What they have in common; None of attempts that have no such thing."""


class Costs(Answer):
    object: Literal["costs"]
    by: str
    """What `name` is of each group."""
    month: str | None
    """Month in which they ended; None: any."""
    total: CostSums
    groups: tuple[CostGroup, ...]
    """Days and months in their order, else the most expensive first."""
    has_more: bool
    """Whether there are more groups, which the CSV has."""


class TenantQuotas(Answer):
    object: Literal["quotas"]
    tenant: str
    limits: Quotas
    decided: JsonObject
    """What the operator decided for the tenant."""
    used: dict[str, int | float]
    next_month_at: Time
    """When `cost_per_month` begins again."""


class KafkaUser(Resource):
    object: Literal["kafka_user"]
    username: str
    tenant: str | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    group_prefix: str
    changed_at: Time


class KafkaLogin(Answer):
    """A login and its password, which is shown only here."""

    object: Literal["kafka_user"]
    username: str
    password: str
    state: Literal["pending", "ready"]
    """`pending` where accounts is away: the login works once it is back."""
    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] | None = None
    group_prefix: str | None = None


class RemovedKafkaUser(Answer):
    object: Literal["kafka_user"]
    username: str
    deleted: bool


class NewTenant(Answer):
    object: Literal["tenant"]
    name: str
    is_new: bool
    api_key: str
    kafka: KafkaLogin | None = None


class Tenant(Resource):
    object: Literal["tenant"]
    tier: str
    created_at: Time
    active_keys: Count
    """API keys that are not revoked."""


class ApiKey(Resource):
    """An API key without its secret, which nobody has but who was shown it."""

    object: Literal["api_key"]
    prefix: str
    """How the key begins."""
    created_at: Time
    revoked_at: Time | None


class RevokedKeys(Answer):
    object: Literal["tenant"]
    name: str
    revoked_keys: Count


class PoolList(Answer):
    object: Literal["list"]
    data: tuple[PoolCapacityChanged, ...]
