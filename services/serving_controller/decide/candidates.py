"""Which replica loads a version under evaluation, and what its evaluation hears."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schemas.base import CommandRefused, Message
from schemas.deployment import CandidateReady, LoadCandidate
from services.serving_controller.decide.slots import replica_address
from services.serving_controller.model import (
    CANDIDATE,
    Candidate,
    Failure,
    Phase,
    Replica,
    ReplicaSet,
    Servable,
)


@dataclass(frozen=True)
class CandidateDecision:
    candidate: Candidate | None
    """What to keep; None: nothing is to be known of it any more, and what is loaded of it is unloaded."""
    events: tuple[Message, ...] = ()


def on_asked(asked: LoadCandidate, *, command_id: str) -> Candidate:
    servable = Servable(
        model_id=asked.model_id,
        full_name=f"{CANDIDATE}{asked.eval_id}",
        kind="adapter",
        digest=asked.digest,
        base_model="",
        base_sha=asked.base_sha,
        rank=asked.rank,
    )
    return Candidate(asked.eval_id, servable, asked.until, command_id)


def candidates_by_replica(
    replica_set: ReplicaSet, replicas: Sequence[Replica], *, max_adapters: int
) -> dict[str, dict[str, Candidate]]:
    """Return by replica the candidates that it holds or shall load. One that cannot be held is missing."""
    held: dict[str, dict[str, Candidate]] = {}
    for name, candidate in sorted(replica_set.candidates.items()):
        replica = _replica_for(candidate, replicas)
        if replica is not None and _is_held(
            candidate, replica_set, replica, replicas, max_adapters=max_adapters
        ):
            held.setdefault(replica.replica_id, {})[name] = candidate
    return held


def _is_held(
    candidate: Candidate,
    replica_set: ReplicaSet,
    replica: Replica,
    replicas: Sequence[Replica],
    *,
    max_adapters: int,
) -> bool:
    """What was announced and is gone is not loaded again: its evaluation has seen it go."""
    if candidate.host is not None:
        return candidate.servable.served_name in replica.loaded
    return find_obstacle(candidate, replica_set, replicas, max_adapters=max_adapters) is None


def find_obstacle(
    candidate: Candidate, replica_set: ReplicaSet, replicas: Sequence[Replica], *, max_adapters: int
) -> Failure | None:
    """Why no replica loads it: it never takes the room of what is served, nor has a replica restarted."""
    replica = _replica_for(candidate, replicas)
    if replica is None:
        return Failure("replica", "no replica of its base model is ready")
    if (rank := candidate.servable.rank) > replica.max_rank:
        return Failure("rank", f"its rank is {rank}, expected at most {replica.max_rank}")
    others = sum(name != candidate.servable.served_name for name in replica_set.candidates)
    taken = len(replica_set.adapters) + others
    if taken >= max_adapters:
        return Failure("full", f"{taken} of {max_adapters} adapters are loaded, expected room for one more")
    return None


def reconcile(
    candidate: Candidate,
    replica_set: ReplicaSet,
    replicas: Sequence[Replica],
    failures: Mapping[str, Failure],
    *,
    max_adapters: int,
) -> CandidateDecision:
    """Answer whoever asked for it; forget it once the replica that was announced has it no more."""
    name = candidate.servable.served_name
    replica = _replica_for(candidate, replicas)
    has_it = replica is not None and name in replica.loaded
    if candidate.host is not None:
        return CandidateDecision(candidate if has_it else None)
    if has_it:
        assert replica is not None
        return CandidateDecision(
            replace(candidate, host=replica.address), (_ready(candidate, replica, replica_set),)
        )
    failure = failures.get(name) or find_obstacle(candidate, replica_set, replicas, max_adapters=max_adapters)
    return CandidateDecision(candidate) if failure is None else _refuse(candidate, failure)


def _replica_for(candidate: Candidate, replicas: Sequence[Replica]) -> Replica | None:
    """Return the replica where it was announced, else one where it is loaded, else the first ready one."""
    ready = sorted(
        (replica for replica in replicas if replica.phase is Phase.READY),
        key=lambda replica: replica.replica_id,
    )
    if candidate.host is not None:
        return next((replica for replica in ready if replica.address == candidate.host), None)
    having = [replica for replica in ready if candidate.servable.served_name in replica.loaded]
    return next(iter([*having, *ready]), None)


def _ready(candidate: Candidate, replica: Replica, replica_set: ReplicaSet) -> CandidateReady:
    return CandidateReady(
        pool=replica_set.pool,
        base_sha=replica_set.base_sha,
        eval_id=candidate.eval_id,
        digest=candidate.servable.digest,
        replica=replica_address(replica.address),
        served_name=candidate.servable.served_name,
        served_base=replica.served_base,
    )


def _refuse(candidate: Candidate, failure: Failure) -> CandidateDecision:
    fact = CommandRefused(
        subject_id=candidate.eval_id,
        command=LoadCandidate.type,
        command_id=candidate.command_id,
        code=failure.code,
        message=failure.reason,
    )
    return CandidateDecision(None, (fact,))
