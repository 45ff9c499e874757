"""Deployments and what became of their generations: how long each swap took, and which ones were roll-backs."""

from collections.abc import Sequence
from datetime import datetime

from schemas import deployment, model
from schemas.base import Message
from schemas.deployment import DeploymentReady, DeploymentStep, Swap
from services.gateway.deployment_responses import Deployment, DeploymentGeneration, GenerationStatus
from services.gateway.model import Route, Row
from services.gateway.projections import Projection, into, now, sent_at
from services.gateway.representations import unix
from services.gateway.store import columns, select
from services.gateway.tables import Table
from shared.messaging.unit import Unit
from shared.postgres.database import Database


class Generation(Row):
    """One desired state of a slot."""

    slot: str
    generation: int
    model_id: str
    digest: str
    approved_at: datetime | None
    ready_at: datetime | None
    """When requests were routed to it for the first time."""
    failed_at: datetime | None
    withdrawn_at: datetime | None
    swap: Swap | None
    failed_step: DeploymentStep | None
    reason: str
    previous_digest: str | None
    """What the slot served before, where this was a roll-back."""

    def status(self, newest: int) -> GenerationStatus:
        """newest: the slot's newest generation; one that was neither ready nor failed before it never will be."""
        if self.withdrawn_at is not None:
            return "withdrawn"
        if self.failed_at is not None:
            return "failed"
        if self.ready_at is not None:
            return "ready"
        return "pending" if self.generation >= newest else "replaced"


GENERATION = Table("slot_generation", ("tenant", "slot", "generation"))
# What a release before sends has no swap, and neither has a version that is loaded again: of a generation whose
# approval was heard, the first of these facts counts.
NOT_READY_YET = Table(
    GENERATION.name,
    GENERATION.key,
    only_where="approved_at IS NOT NULL AND ready_at IS NULL",
    is_inserted=False,
)
VERSION = ("model_id", "digest")
READY = into(GENERATION, *VERSION, "swap", ready_at=sent_at, changed_at=now)
READY_AGAIN = into(NOT_READY_YET, ready_at=sent_at, changed_at=now)
OTHERS: dict[type[Message], Projection] = {
    model.DeploymentApproved: into(GENERATION, *VERSION, approved_at=sent_at, changed_at=now),
    model.DeploymentWithdrawn: into(GENERATION, "reason", withdrawn_at=sent_at, changed_at=now),
    deployment.DeploymentFailed: into(
        GENERATION,
        *(*VERSION, "reason"),
        failed_step=lambda event, unit: event.step,
        failed_at=sent_at,
        changed_at=now,
    ),
    deployment.DeploymentRolledBack: into(GENERATION, *VERSION, "previous_digest", changed_at=now),
}
FACTS: tuple[type[Message], ...] = (DeploymentReady, *OTHERS)

LIST_GENERATIONS = f"""
    SELECT {columns(Generation)} FROM slot_generation
     WHERE tenant = $1 AND slot = $2 AND ($3::bigint IS NULL OR generation < $3) ORDER BY generation DESC LIMIT $4"""
GENERATIONS_OF_ROUTES = f"""
    SELECT {columns(Generation)} FROM slot_generation
     WHERE tenant = $1 AND (slot, generation) IN (SELECT * FROM unnest($2::text[], $3::bigint[]))"""
# The newest one of a slot stays, for it is what the slot serves or shall serve.
PRUNE_GENERATIONS = """
    DELETE FROM slot_generation WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM slot_generation AS old
         WHERE changed_at < now() - $1::interval
           AND (SELECT true FROM route WHERE (route.tenant, route.slot) = (old.tenant, old.slot)
                   AND route.generation = old.generation) IS NULL LIMIT $2))"""


async def follow(event: Message, unit: Unit) -> None:
    """Note what became of a generation."""
    if isinstance(event, DeploymentReady):
        await (READY if event.swap else READY_AGAIN).apply(event, unit)
    else:
        await OTHERS[type(event)].apply(event, unit)


async def list_generations(
    database: Database, tenant: str, slot: str, *, before: int | None, limit: int
) -> list[Generation]:
    """Return generations of the slot, the newest first."""
    return await select(Generation, database, LIST_GENERATIONS, tenant, slot, before, limit)


async def find_generations(database: Database, routes: Sequence[Route]) -> dict[str, Generation]:
    """Return the generation that each of a tenant's routes has, by slot, where it is known."""
    if not routes:
        return {}
    slots, generations = [row.slot for row in routes], [row.generation for row in routes]
    rows = await select(Generation, database, GENERATIONS_OF_ROUTES, routes[0].tenant, slots, generations)
    return {row.slot: row for row in rows}


def representation(row: Route, generation: Generation | None) -> Deployment:
    return Deployment(
        id=row.slot,
        object="model.deployment",
        slot=row.slot,
        model_id=row.model_id,
        digest=row.digest,
        generation=row.generation,
        status=row.state,
        reason=row.reason,
        served_name=row.served_name,
        replicas=tuple(replica.replica_id for replica in row.replicas),
        updated_at=unix(row.updated_at),
        swap=generation.swap if generation else None,
        failed_step=generation.failed_step if generation else None,
    )


def generation_representation(row: Generation, newest: int) -> DeploymentGeneration:
    """newest: the slot's newest generation."""
    return DeploymentGeneration(
        id=f"generation-{row.generation}",
        object="model.deployment.generation",
        slot=row.slot,
        generation=row.generation,
        model_id=row.model_id,
        digest=row.digest,
        status=row.status(newest),
        reason=row.reason,
        failed_step=row.failed_step,
        approved_at=_unix(row.approved_at),
        ready_at=_unix(row.ready_at),
        ended_at=_unix(row.withdrawn_at or row.failed_at),
        rolled_back_from=row.previous_digest,
        swap=row.swap,
    )


def _unix(time: datetime | None) -> int | None:
    return None if time is None else unix(time)
