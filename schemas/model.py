"""model.commands and model.events: base models, model versions, stages and slots."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import BundleRef, Count, JobId, Message, Sha256, TenantName, Value


class Stage(StrEnum):
    DEV = "dev"
    STAGING = "staging"
    PRODUCTION = "production"
    ARCHIVED = "archived"


class DirectorySource(Value):
    kind: Literal["directory"] = "directory"
    path: str
    """A directory that the registry can read."""


class HubSource(Value):
    kind: Literal["hub"] = "hub"
    repository: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class RegisterBaseModel(Message):
    keyed_by = "name"
    name: str
    source: Annotated[DirectorySource | HubSource, Field(discriminator="kind")]


class ModelCommand(Message):
    keyed_by = "model_id"
    model_id: str
    tenant: TenantName


class PromoteModel(ModelCommand):
    """Approve a staged version for production."""

    approved_by: str
    accept_without_holdout: bool = False
    """Approve a version that was never held against rows of its own task; asks for a reason."""
    reason: str = ""


class ArchiveModel(ModelCommand):
    pass


class ExportModel(ModelCommand):
    format: Literal["safetensors", "gguf"]


class DeleteModel(ModelCommand):
    pass


class DeployModel(ModelCommand):
    """Serve a version under a slot: its full name, or a short production alias."""

    slot: str


class RollbackDeployment(Message):
    """Back to the version that the slot served before."""

    keyed_by = "slot"
    slot: str
    tenant: TenantName


class UndeployModel(Message):
    keyed_by = "slot"
    slot: str
    tenant: TenantName


class BaseModelRegistered(Message):
    """The files are at `base-models/<sha>`."""

    keyed_by = "name"
    name: str
    base_sha: Sha256
    manifest_sha256: Sha256
    source: str
    template_sha256: Sha256
    context_tokens: Count
    num_parameters: Count


class ModelFact(Message):
    keyed_by = "model_id"
    model_id: str
    tenant: TenantName
    job_id: JobId
    digest: Sha256


class ModelRegistered(ModelFact):
    """A version exists in `dev` with its whole lineage; its files are at `models/<digest>`."""

    full_name: str
    kind: Literal["adapter", "full"]
    rank: Count
    base_model: str
    base_sha: Sha256
    dataset_version: Sha256
    config_hash: Sha256
    template_sha256: Sha256
    bundle: BundleRef
    stage: Stage = Stage.DEV


class ModelPromoted(ModelFact):
    full_name: str
    stage: Stage
    eval_id: str
    has_holdout: bool | None = None
    """Whether the evaluation held it against rows of its own task. None where an older writer did not say."""
    approved_by: str | None = None
    """Who approved it for production; None in staging, which nobody approves."""
    approval_reason: str = ""
    accepted_without_holdout: bool = False


class ModelDemoted(ModelFact):
    """The gate failed a version that it had passed before: back in `dev`, and no slot serves it any more."""

    full_name: str
    stage: Stage = Stage.DEV
    eval_id: str
    """The evaluation that failed."""
    reason: str


class PromotionRefused(Message):
    """The version is not promoted. `artefact`: it could not be copied or verified, so there is no version."""

    keyed_by = "job_id"
    job_id: JobId
    tenant: TenantName
    model_id: str | None
    code: str
    message: str


class ModelArchived(ModelFact):
    full_name: str


class ModelExported(ModelFact):
    format: str
    manifest_sha256: Sha256


class AdaptersStale(Message):
    """The base model's name points to other files now; versions on the old sha are not served."""

    keyed_by = "base_model"
    base_model: str
    stale_sha: Sha256
    new_sha: Sha256
    model_ids: tuple[str, ...]


class SlotFact(Message):
    """The desired state of a slot. The highest generation of a slot wins, withdrawals count too."""

    keyed_by = "slot"
    slot: str
    tenant: TenantName
    generation: Count


class DeploymentApproved(SlotFact):
    model_id: str
    job_id: JobId | None
    """The job that waits for this, or None where a person asked."""
    kind: Literal["adapter", "full"]
    digest: Sha256
    base_model: str
    base_sha: Sha256
    eval_id: str
    rank: Count


class DeploymentWithdrawn(SlotFact):
    reason: str
