"""Replicas whose nodes go away by notice of their cluster backend: others take their places. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import count

from services.serving_controller.model import Phase, Replica, ReplicaSet

LEAVE_BEFORE = timedelta(seconds=30)
"""So long before its node ends a replica leaves at the latest, whether or not another one is ready."""
END_BEFORE = timedelta(seconds=2)
"""So long before its node ends it is ended, whatever it has to answer."""


def desired_ids(replica_set: ReplicaSet, replicas: Sequence[Replica]) -> list[str]:
    """Return the ids of the replicas that there shall be. One whose node goes away is none of them: another id is in
    its place, and stays there when it is gone."""
    ids = [f"{replica_set.name}-{index}" for index in range(replica_set.num_replicas)]
    if not any(lease.node for lease in (replica_set.leases or {}).values()):
        return ids
    going = {each.replica_id for each in replicas if deadline_of(replica_set, each) is not None}
    living = {each.replica_id for each in replicas if each.phase in (Phase.STARTING, Phase.READY)} - going
    others = iter(sorted(living - {*ids}, key=_index))
    taken = {each.replica_id for each in replicas if each.phase is not Phase.LOST} | {*ids}
    fresh = (name for index in count(len(ids)) if (name := f"{replica_set.name}-{index}") not in taken)
    return [
        each if each in living else next(others, None) or (next(fresh) if each in going else each)
        for each in ids
    ]


def deadline_of(replica_set: ReplicaSet, replica: Replica) -> datetime | None:
    """Return when the replica's node goes away; None where that is not known, or nothing of it runs."""
    lease = (replica_set.leases or {}).get(replica.replica_id)
    if replica.phase is Phase.LOST or lease is None or lease.node is None:
        return None
    return lease.node.notice_deadline


def is_time_to_leave(
    replica_set: ReplicaSet, deadline: datetime, replicas: Iterable[Replica], *, now: datetime
) -> bool:
    """Return whether others serve in its place, or it must leave in any case."""
    staying = [
        each
        for each in replicas
        if each.phase is Phase.READY and deadline_of(replica_set, each) is None and each.answers
    ]
    return len(staying) >= replica_set.num_replicas or deadline - now <= LEAVE_BEFORE


def reason_of(replica_set: ReplicaSet, replica: Replica) -> str:
    lease = (replica_set.leases or {})[replica.replica_id]
    assert lease.node is not None, "a notice is of a node"
    return f"its node goes away: {lease.node.notice_source}"


def _index(replica_id: str) -> int:
    return int(replica_id.rpartition("-")[2])
