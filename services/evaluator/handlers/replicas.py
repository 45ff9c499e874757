"""What is known of replicas, and which of them loads a candidate."""

from schemas.base import CommandRefused
from schemas.deployment import CandidateReady, LoadCandidate, ReplicaLost, ReplicaReady
from services.evaluator import store
from shared.messaging.unit import Unit


async def replica_ready(event: ReplicaReady, unit: Unit) -> None:
    await store.save_replica(unit.conn, event)


async def replica_lost(event: ReplicaLost, unit: Unit) -> None:
    await store.lose_replica(unit.conn, event.replica.replica_id, event.replica.incarnation)


async def candidate_ready(event: CandidateReady, unit: Unit) -> None:
    await store.fill_host(unit.conn, event)


async def command_refused(event: CommandRefused, unit: Unit) -> None:
    if event.command == LoadCandidate.type:
        problem = f"no replica loads the candidate ({event.code}): {event.message}"
        await store.refuse_host(unit.conn, event.subject_id, problem)
