"""What routes of deployments answer. See `responses`."""

from typing import Literal

from schemas.base import Count
from schemas.deployment import DeploymentStep, Swap
from services.gateway.responses import Resource, Time

GenerationStatus = Literal["pending", "ready", "failed", "withdrawn", "replaced"]


class Deployment(Resource):
    object: Literal["model.deployment"]
    slot: str
    model_id: str
    digest: str
    generation: Count
    status: str
    reason: str
    served_name: str
    replicas: tuple[str, ...]
    updated_at: Time
    swap: Swap | None
    """How long it took until requests were routed to this generation; null before that, and where it is not known."""
    failed_step: DeploymentStep | None
    """The step in which this generation failed, where it came to one."""


class DeploymentGeneration(Resource):
    """One desired state of a slot, and what became of it."""

    object: Literal["model.deployment.generation"]
    slot: str
    generation: Count
    model_id: str
    digest: str
    status: GenerationStatus
    """What became of it; `replaced`: a later generation came before it was ready."""
    reason: str
    """Why it failed or was withdrawn."""
    failed_step: DeploymentStep | None
    """The step in which it failed, where it came to one."""
    approved_at: Time | None
    ready_at: Time | None
    """When requests were routed to it for the first time; null: never, or before this was noted."""
    ended_at: Time | None
    """When it failed or was withdrawn."""
    rolled_back_from: str | None
    """Digest of what the slot served before, where an earlier version came back."""
    swap: Swap | None
    """How long its steps took; null before it is ready, and where it is not known."""
