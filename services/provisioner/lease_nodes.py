"""The nodes of leases in pools that are not of this machine: started for the lease, watched, ended with it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.base import Message
from schemas.node import LeaseEnd
from services.provisioner import leases
from services.provisioner.backends.protocol import AttemptStatus, Cause, Member, MemberState
from services.provisioner.model import Lease, LeaseNode, LeaseNodeState, LeaseState, Pool

ENDED_BY: Mapping[Cause | None, str] = {
    Cause.PREEMPTED: "was preempted by the cluster backend",
    Cause.NODE_LOST: "was lost",
    Cause.CANCELLED: "was cancelled at the cluster backend",
    Cause.START_TIMEOUT: "was never started by the cluster backend",
}
"""How a node ended that left no exit code."""


@dataclass(frozen=True)
class Followed:
    """A lease after something became known of its node."""

    lease: Lease
    events: tuple[Message, ...] = ()


def is_wanted(lease: Lease) -> bool:
    """Return whether the backend is to start a node for the lease."""
    return not lease.has_ended and _node(lease).state is LeaseNodeState.STARTING


def on_started(lease: Lease, pool: Pool, status: AttemptStatus | None, *, public_key: str) -> Followed:
    """Announce the node, or that it is queued at the backend."""
    if not is_wanted(lease):
        return Followed(lease)
    if status is None:
        return on_failed(lease, f"the cluster backend does not know {_node(lease).name} after its start")
    keyed = replace(_node(lease), public_key=public_key if status.has_keys else None)
    if status.is_queued:
        return _wait(lease, replace(keyed, state=LeaseNodeState.QUEUED), status.waiting_for)
    return _run(replace(lease, node=keyed), pool)


def on_failed(lease: Lease, message: str) -> Followed:
    """End the lease: it has no node, or has none any more."""
    if lease.has_ended:
        return Followed(lease)
    over = leases.on_end(lease, LeaseEnd.NODE_ENDED, message)
    return Followed(over, (leases.ended(over),))


def on_status(lease: Lease, pool: Pool, status: AttemptStatus) -> Followed:
    """Follow what the backend shows: its queue, the machine, its notice, and the end of the node."""
    if lease.has_ended or lease.state is not LeaseState.HELD:
        return Followed(lease)
    member = next(iter(status.members), None)
    if member is None:
        return Followed(lease)
    if _node(lease).state is LeaseNodeState.QUEUED:
        if status.refusal:
            return on_failed(lease, status.refusal)
        if status.is_queued:
            is_news = status.has_other_reason_than(_node(lease).waiting_for or "")
            return _wait(lease, _node(lease), status.waiting_for) if is_news else Followed(lease)
        return _on_member(_run(lease, pool).lease, pool, member, is_new=True)
    return _on_member(lease, pool, member, is_new=False)


def _on_member(lease: Lease, pool: Pool, member: Member, *, is_new: bool) -> Followed:
    if member.state is MemberState.ENDED and member.cause is not Cause.UNKNOWN:
        return on_failed(lease, _how(lease, member))
    noticed = _noticed(_on_machine(_node(lease), member), member)
    after = replace(lease, node=noticed)
    before = _node(lease)
    has_news = is_new or noticed != before
    return Followed(after, (leases.leased(after, pool),) if has_news else ())


def _wait(lease: Lease, node: LeaseNode, waiting_for: str) -> Followed:
    waiting = replace(lease, node=replace(node, waiting_for=waiting_for))
    return Followed(waiting, (leases.waits(waiting, waiting_for),))


def _run(lease: Lease, pool: Pool) -> Followed:
    running = replace(lease, node=replace(_node(lease), state=LeaseNodeState.RUNNING))
    return Followed(running, (leases.leased(running, pool),))


def _on_machine(node: LeaseNode, member: Member) -> LeaseNode:
    return replace(node, host=member.host or node.host, address=member.address or node.address)


def _noticed(node: LeaseNode, member: Member) -> LeaseNode:
    """Return the node with the backend's notice, unless it has had an earlier one."""
    deadline = member.notice_deadline
    if deadline is None or (node.notice_deadline is not None and node.notice_deadline <= deadline):
        return node
    return replace(node, notice_deadline=deadline, notice_source=member.notice_source)


def _how(lease: Lease, member: Member) -> str:
    how = (
        ENDED_BY.get(member.cause, "vanished")
        if member.exit_code is None
        else f"exited with code {member.exit_code}"
    )
    where = f" on {host}" if (host := member.host or _node(lease).host) else ""
    return f"node {_node(lease).leased.node_id}{where} {how}"


def _node(lease: Lease) -> LeaseNode:
    assert lease.node is not None, f"lease {lease.lease_id} has no node"
    return lease.node
