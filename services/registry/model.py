"""Words of the registry: a model version and its lineage, a verdict, a slot and its generations."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field

from schemas.base import BundleRef, StartFrom, Value
from schemas.capabilities import BaseCapabilities, LossForm
from schemas.evaluation import CheckResult
from schemas.exports import ExportedFile, ExportFormat, ParityReport, Quantization
from schemas.job import Artifact
from schemas.model import Stage
from shared.transitions import IllegalTransition, Transitions

SHORT_DIGEST = 8

TRANSITIONS = Transitions[Stage](
    {
        Stage.DEV: frozenset({Stage.STAGING}),
        Stage.STAGING: frozenset({Stage.PRODUCTION, Stage.DEV}),
        Stage.PRODUCTION: frozenset({Stage.DEV}),
    }
)


def model_id(job_id: str, digest: str) -> str:
    """Return the id of a version. A model version is (tenant, job, digest), and a job has one tenant."""
    return f"mv-{job_id}-{digest[:SHORT_DIGEST]}"


class Inspection(Value):
    """What transformers makes of a base model's files, without reading a weight."""

    problem: str = ""
    """Why nothing can be trained from these files; empty where it can be recognised from the rest."""
    family: str = ""
    architectures: tuple[str, ...] = ()
    """Names of the classes as config.json has them."""
    architecture: str = ""
    """The class that trains it."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    takes_attention: bool = False
    """Whether the class lets its attention be replaced, as serving does."""
    is_of_text: bool = True
    """False: it also reads images or sounds."""
    quantization: str = ""
    num_layers: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    num_experts: int = 0
    vocab_size: int = 0
    cache_values_per_token: int = 0
    tie_word_embeddings: bool = False
    loss: LossForm | None = None
    linears: Mapping[str, tuple[int, int]] = Field(default={})
    """(outputs, inputs) of each matrix that an adapter can be added to."""
    written: Mapping[str, tuple[int, ...]] = Field(default={})
    """Shapes of the trained tensors as a full model's file names them."""
    missing: tuple[str, ...] = ()
    """Tensors that the files lack."""
    converts_names: bool = False
    rows: Mapping[str, str] = Field(default={})
    """Kinds of conversations as training rows, each with why it cannot be trained on; empty where it can."""
    marks_answers: bool | None = None
    """Whether its own chat template marks what the assistant says; None: it has none that can be read."""


@dataclass(frozen=True)
class BaseModel:
    """What a base model's name points to now."""

    name: str
    base_sha: str
    manifest_sha256: str
    source: str
    template_sha256: str
    context_tokens: int
    num_parameters: int
    training_template_sha256: str | None = None
    """sha256 of the template that marks the answers in training; None where it was registered without one."""
    capabilities: BaseCapabilities | None = None


@dataclass(frozen=True)
class Verdict:
    """The newest word of the gate about a version."""

    eval_id: str
    outcome: Literal["passed", "failed", "inconclusive"]
    checks: tuple[CheckResult, ...]
    reason: str = ""
    number: int = 0
    """Which evaluation of its job it is; of two verdicts the greater number is the newer one."""

    @property
    def has_holdout(self) -> bool:
        """Whether the version was tested on rows of its own task."""
        return any(check.check == "holdout" and check.outcome != "not_requested" for check in self.checks)


@dataclass(frozen=True)
class Approval:
    """Approval of a version for production, by a person."""

    approved_by: str
    reason: str = ""
    accepts_no_holdout: bool = False


@dataclass(frozen=True)
class Version:
    model_id: str
    tenant: str
    job_id: str
    digest: str
    full_name: str
    kind: Literal["adapter", "full"]
    rank: int
    base_model: str
    base_sha: str
    dataset_version: str
    config_hash: str
    template_sha256: str
    bundle: BundleRef
    auto_deploy: bool
    started_from: StartFrom | None = None
    """What its training started from; None: the base model."""
    best_valid_loss: float | None = None
    """Validation loss by which its checkpoint is the best of its run. None: it is the last one."""
    artifact: Artifact | None = None
    """The artifact as it was announced; None where it was registered before that was kept."""
    stage: Stage = Stage.DEV
    """dev, staging or production: how far it came, also once it is archived."""
    eval_id: str | None = None
    """The newest evaluation that passed."""
    archived_at: datetime | None = None
    verdict: Verdict | None = None
    approval: Approval | None = None
    """The approval for production; None outside it, and where it was approved before approvals were kept."""
    revision: int = 0

    @property
    def is_gated(self) -> bool:
        return self.stage is not Stage.DEV

    @property
    def may_be_served(self) -> bool:
        """Whether a slot may be given to it: only what is newly put there asks for a newest verdict that passed."""
        is_passed = self.verdict is not None and self.verdict.outcome == "passed"
        return self.is_gated and is_passed and self.archived_at is None

    @property
    def has_holdout(self) -> bool:
        return self.verdict is not None and self.verdict.has_holdout

    @property
    def may_take_alias(self) -> bool:
        """Whether an alias may name it: it is in production, and without a holdout its approval accepts that."""
        accepts = self.approval is not None and self.approval.accepts_no_holdout
        return self.stage is Stage.PRODUCTION and (self.has_holdout or accepts)

    def to(self, stage: Stage, **changes: Any) -> Self:
        TRANSITIONS.require(self.stage, stage, what=f"model version {self.model_id}")
        return replace(self, stage=stage, **changes)


class Outcome(StrEnum):
    PENDING = "pending"  # approved; the serving controller has not answered
    READY = "ready"  # served
    FAILED = "failed"  # could not be served
    WITHDRAWN = "withdrawn"  # this generation serves nothing


@dataclass(frozen=True)
class Generation:
    """One decision about a slot. `model_id` and `digest` are None where it was withdrawn."""

    number: int
    model_id: str | None
    digest: str | None
    outcome: Outcome


@dataclass(frozen=True)
class Slot:
    """A name that a tenant's requests use, and every decision about what it serves, oldest first."""

    tenant: str
    name: str
    generations: tuple[Generation, ...] = ()
    revision: int = 0

    @property
    def generation(self) -> int:
        return self.generations[-1].number if self.generations else 0

    @property
    def desired(self) -> Generation | None:
        """What the slot is meant to serve; None where nothing is."""
        if not self.generations or self.generations[-1].outcome is Outcome.WITHDRAWN:
            return None
        return self.generations[-1]

    def approve(self, version: Version) -> Self:
        if not version.may_be_served:
            gate_result = version.verdict.outcome if version.verdict else "not evaluated"
            raise IllegalTransition(
                f"slot {self.name}: {version.model_id} is {version.stage} and {gate_result}"
            )
        return self._next(version.model_id, version.digest, Outcome.PENDING)

    def withdraw(self) -> Self:
        return self._next(None, None, Outcome.WITHDRAWN)

    def answered(self, number: int, outcome: Outcome) -> Self:
        """Record how serving one generation went, as the serving controller reported."""
        generations = tuple(
            replace(known, outcome=outcome)
            if known.number == number and known.outcome is not Outcome.WITHDRAWN
            else known
            for known in self.generations
        )
        return replace(self, generations=generations)

    def _next(self, model: str | None, digest: str | None, outcome: Outcome) -> Self:
        added = Generation(self.generation + 1, model, digest, outcome)
        return replace(self, generations=(*self.generations, added))


class Distances(Value):
    """Numbers of a comparison of exported files with the model that was trained; as in ParityReport."""

    num_tokens: int
    max_difference: float
    mean_difference: float
    mean_kl: float
    max_kl: float
    training_kl: float | None
    equal_next_tokens: float
    equal_token_ids: bool | None
    is_finite: bool
    """Whether all logits of the files are numbers."""


@dataclass(frozen=True)
class BaseFacts:
    """What decides about exports of versions of a base model."""

    num_parameters: int
    family: str | None
    """None, as the next two, where the base model was registered before it was looked at."""
    weights_dtype: str | None
    """Type of most values in its files, as safetensors names it."""
    vocab_size: int | None


class ExportState(StrEnum):
    RUNNING = "running"  # asked for; its task works or waits
    READY = "ready"  # its files are stored
    FAILED = "failed"  # there are no files
    DELETING = "deleting"  # its files are being deleted


@dataclass(frozen=True)
class Export:
    """Files of a version in one format; a version has one of each format and quantization."""

    export_id: str
    model_id: str
    tenant: str
    format: ExportFormat
    quantization: Quantization | None
    state: ExportState
    estimated_bytes: int
    files: tuple[ExportedFile, ...] = ()
    parity: ParityReport | None = None
    code: str = ""
    message: str = ""
    """Why it failed."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)
