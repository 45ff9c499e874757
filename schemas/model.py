"""model.commands and model.events: base models, model versions, stages and slots."""

from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import (
    BundleRef,
    Bytes,
    Count,
    JobId,
    Message,
    Reference,
    Seconds,
    Sentence,
    Sha256,
    StartFrom,
    TenantName,
    Value,
)
from schemas.capabilities import BaseCapabilities
from schemas.exports import ExportActivity, ExportedFile, ExportFormat, ParityReport, Quantization
from schemas.job import StagePlan

MAX_TEMPLATE_CHARACTERS = 200_000
NO_TEMPLATE_SHA256 = sha256(b"").hexdigest()
"""`template_sha256` of a base model without a chat template: it completes prompts as they are."""


class Stage(StrEnum):
    DEV = "dev"
    STAGING = "staging"
    PRODUCTION = "production"
    ARCHIVED = "archived"


class DirectorySource(Value):
    kind: Literal["directory"] = "directory"
    path: Annotated[str, Field(max_length=4_096)]
    """A directory that the registry can read."""


class HubSource(Value):
    kind: Literal["hub"] = "hub"
    repository: Reference
    """`<owner>/<name>` on the hub."""
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    """Commit of the repository."""


class RegisterBaseModel(Message):
    """Copy a base model's files and check them, so that jobs can name it."""

    keyed_by = "name"
    name: Reference
    """Name that jobs use for it."""
    source: Annotated[DirectorySource | HubSource, Field(discriminator="kind")]
    """Where its files are."""
    training_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARACTERS)] | None = None
    """Template that marks what the assistant says in the texts of the model's own; None: its own is used."""


class ModelCommand(Message):
    keyed_by = "model_id"
    model_id: Reference
    """Id of the model version, `mv-…`."""
    tenant: TenantName


class PromoteModel(ModelCommand):
    """Approve a staged version for production."""

    approved_by: Reference
    """Who approves."""
    accept_without_holdout: bool = False
    """Approve a version that was never evaluated on rows of its own task; requires a reason."""
    reason: Sentence = ""
    """Why it is approved without a holdout."""


class ArchiveModel(ModelCommand):
    """Take a version out of use; its lineage stays."""


class ExportModel(ModelCommand):
    """Write the version as files that run without the platform; one that there is already is answered again."""

    format: ExportFormat
    """Format of the files."""
    quantization: Quantization | None = None
    """Type of the matrices of a GGUF file; None: f16. Safetensors keep the base model's own type."""


class DeleteExport(ModelCommand):
    """Delete the files of an export that is not under way."""

    export_id: Reference
    """Id of the export, `export-…`."""


class DeleteModel(ModelCommand):
    """Delete the bytes of a version."""


class DeployModel(ModelCommand):
    """Serve a version under a slot: its full name, or a short production alias."""

    slot: Reference
    """Name that the version is served under."""


class RegisterArtifact(Message):
    """Copy once more what a job trained, or another checkpoint of a job that is over.

    The job of the first has ended without a model version, for the copy had failed; the other checkpoint becomes a
    version beside the one that its job has made.
    """

    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    bundle: BundleRef | None = None
    """The checkpoint. None: the one whose copy had failed."""


class RollbackDeployment(Message):
    """Serve the version again that the slot served before."""

    keyed_by = "slot"
    slot: Reference
    """Name that the version is served under."""
    tenant: TenantName


class UndeployModel(Message):
    """Serve nothing under the slot any more."""

    keyed_by = "slot"
    slot: Reference
    """Name that the version is served under."""
    tenant: TenantName


class BaseModelRegistered(Message):
    """The files are at `base-models/<sha>`."""

    keyed_by = "name"
    name: str
    """Name of the base model."""
    base_sha: Sha256
    manifest_sha256: Sha256
    source: str
    """Where the files came from."""
    template_sha256: Sha256
    context_tokens: Count
    """Longest sequence that it was made for."""
    num_parameters: Count
    """Parameters of the model."""
    training_template_sha256: Sha256 | None = None
    """sha256 of the template that marks the answers in training; None: they are taken from the model's own."""
    capabilities: BaseCapabilities | None = None
    """What can be trained and served of it. None: registered before this was read; registering it again reads it."""


class ModelFact(Message):
    keyed_by = "model_id"
    model_id: str
    """Id of the model version, `mv-…`."""
    tenant: TenantName
    job_id: JobId
    digest: Sha256


class ModelRegistered(ModelFact):
    """A version exists in `dev` with its whole lineage; its files are at `models/<digest>`."""

    full_name: str
    """Name of the model version, `ft:<base>:<tenant>:<suffix>:<short digest>`."""
    kind: Literal["adapter", "full"]
    """Whether the weights are an adapter on the base model or a model of their own."""
    rank: Count
    """LoRA rank; 0 for a full model."""
    base_model: str
    """Name of the base model."""
    base_sha: Sha256
    dataset_version: Sha256
    config_hash: Sha256
    template_sha256: Sha256
    bundle: BundleRef
    stage: Stage = Stage.DEV
    """Stage that the version is in from now on."""
    training_template_sha256: Sha256 | None = None
    """sha256 of the template that marked the answers in training; None: they were taken from the served one."""
    started_from: StartFrom | None = None
    """What its training started from; None: the base model."""
    best_valid_loss: float | None = None
    """Validation loss by which `bundle` is the best of its run. None: it is the last one."""
    stages: tuple[StagePlan, ...] = ()
    """Stages that its job trained one after the other, where there are several; the last one trained it."""


class ModelPromoted(ModelFact):
    """The version is in a higher stage."""

    full_name: str
    """Name of the model version, `ft:<base>:<tenant>:<suffix>:<short digest>`."""
    stage: Stage
    """Stage that the version is in from now on."""
    eval_id: str
    """The evaluation that it passed."""
    has_holdout: bool | None = None
    """Whether the evaluation measured it on rows of its own task. None from older writers."""
    approved_by: str | None = None
    """Who approved it for production; None in staging, which nobody approves."""
    approval_reason: str = ""
    """What the approver wrote."""
    accepted_without_holdout: bool = False
    """Whether the approver accepted that it was never evaluated on rows of its task."""


class ModelDemoted(ModelFact):
    """The gate failed a version that it had passed before: it is back in `dev`, and no slot serves it any more."""

    full_name: str
    """Name of the model version, `ft:<base>:<tenant>:<suffix>:<short digest>`."""
    stage: Stage = Stage.DEV
    """Stage that the version is in from now on."""
    eval_id: str
    """The evaluation that failed."""
    reason: str
    """Why, for people."""


class PromotionRefused(Message):
    """The version is not promoted. `artifact`: it could not be copied or verified, so there is no version."""

    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    model_id: str | None
    """Id of the model version; None where there is none."""
    code: str
    """Stable word for machines."""
    message: str
    """What happened, for people."""


class ModelArchived(ModelFact):
    """The version is out of use."""

    full_name: str
    """Name of the model version, `ft:<base>:<tenant>:<suffix>:<short digest>`."""


class ExportFact(ModelFact):
    export_id: str
    """Id of the export, `export-…`."""
    format: ExportFormat
    """Format of the files."""
    quantization: Quantization | None = None
    """Type of the matrices of a GGUF file; None for safetensors."""


class ModelExportStarted(ExportFact):
    """The export is under way."""

    estimated_bytes: Bytes
    """Size of its files by estimate."""


class ModelExportProgressed(ExportFact):
    """How far the export is, for people."""

    activity: ExportActivity
    """What it is at."""
    done: Count
    """How much of `total` is done."""
    total: Count
    """Bytes, or sequences while the files are compared with the model; 0 where it is not known."""
    seconds_left: Seconds | None = None
    """Time that the activity takes from now on, by its pace so far; None where nothing is known of it."""


class ModelExported(ExportFact):
    """The files can be downloaded; they passed the comparison with the model that was trained."""

    files: tuple[ExportedFile, ...]
    size_bytes: Bytes
    """Size of all files."""
    parity: ParityReport


class ModelExportFailed(ExportFact):
    """There are no files."""

    code: str
    """Stable word for machines."""
    message: str
    """What happened, for people."""
    parity: ParityReport | None = None
    """The comparison that failed; None where it did not come to one."""


class ModelExportDeleted(ExportFact):
    """The files are deleted."""


class AdaptersStale(Message):
    """The base model's name points to other files now; versions on the old sha are not served.

    Which they are is known by `stale_sha`: a list of them would grow with the platform's history.
    """

    version = 2
    keyed_by = "base_model"
    base_model: str
    """Name of the base model."""
    stale_sha: Sha256
    new_sha: Sha256


class SlotFact(Message):
    """The desired state of a slot. The highest generation of a slot wins, withdrawals count too."""

    keyed_by = "slot"
    slot: str
    """Name that the version is served under."""
    tenant: TenantName
    generation: Count
    """Number of the slot's desired state; the highest one counts."""


class DeploymentApproved(SlotFact):
    """The slot shall serve this version."""

    model_id: str
    """Id of the model version, `mv-…`."""
    job_id: JobId | None
    """The job that waits for this, or None where a person requested it."""
    kind: Literal["adapter", "full"]
    """Whether the weights are an adapter on the base model or a model of their own."""
    digest: Sha256
    base_model: str
    """Name of the base model."""
    base_sha: Sha256
    eval_id: str
    """The evaluation that the version passed."""
    rank: Count
    """LoRA rank; 0 for a full model."""


class DeploymentWithdrawn(SlotFact):
    """The slot shall serve nothing."""

    reason: str
    """Why, for people."""
