"""Pure decisions about capacity and nodes.

Nothing is created, signalled or removed here: an action names what a task then does at the cluster backend, outside
any transaction, and the task's end comes back as the next decision.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from schemas.base import FailureClass, Message
from schemas.job import JobScheduled, JobStopping
from schemas.node import (
    EXIT_FENCED,
    NodeLost,
    NodePreempted,
    NodesProvisioned,
    NodesQueued,
    NodesReleased,
    ProvisioningFailed,
)
from schemas.numbers import plural
from schemas.placement import best_fit, leases_in_words, taken_per_node
from services.provisioner.backends.protocol import AttemptStatus, Cause, Member, MemberState
from services.provisioner.machines import Failure, avoided
from services.provisioner.model import (
    CLEAN_EXITS,
    GONE,
    Attempt,
    AttemptState,
    Node,
    Pool,
    node_id,
)
from shared.errors import Refused

START_SLACK = timedelta(seconds=10)
"""TrainingStarted comes on another topic than the clock: wait a little past the start deadline for it."""

NO_CAPACITY = "no_capacity"
BACKEND_FAILED = "backend_failed"
PREEMPTION = "preemption"
"""Source of a notice that came too late to be seen, where the backend does not say: it took the node at once."""
HOW: Mapping[Cause | None, str] = {
    Cause.CANCELLED: "was cancelled at the cluster backend",
    Cause.START_TIMEOUT: "was never started by the cluster backend",
}
"""How a runner ended that left no exit code."""

FINISH_GRACE_SECONDS = 5.0
"""Given to runners of a completed attempt to write the end of their log."""


@dataclass(frozen=True)
class Create:
    """Ask the backend for all nodes of the attempt."""

    excluded: tuple[str, ...] = ()
    """Machines that it must not run on, by the names that the backend gives them."""


@dataclass(frozen=True)
class Release:
    """Remove all that the backend has of the attempt."""

    grace_seconds: float = 0.0


@dataclass(frozen=True)
class Notify:
    """Notify a node's runner of when the node ends."""

    index: int
    deadline: datetime


@dataclass(frozen=True)
class End:
    """End one node at once."""

    index: int


Action = Create | Release | Notify | End


@dataclass(frozen=True)
class Decision:
    attempt: Attempt
    events: tuple[Message, ...] = ()
    actions: tuple[Action, ...] = ()
    wake_at: datetime | None = None
    """When to look at the attempt's deadlines; None: no new time."""

    def then(self, later: "Decision") -> "Decision":
        """Both, one after the other; `later` was decided on this decision's attempt."""
        wakes = [at for at in (self.wake_at, later.wake_at) if at is not None]
        return Decision(
            later.attempt,
            self.events + later.events,
            self.actions + later.actions,
            min(wakes, default=None),
        )


def on_job_scheduled(
    event: JobScheduled, pool: Pool | None, *, now: datetime, failures: Sequence[Failure] = ()
) -> Decision:
    """Lease devices for the whole gang or nothing, those last that the job's attempt before failed on.

    failures: of that attempt.
    """
    attempt = Attempt(
        event.job_id,
        event.attempt,
        event.tenant,
        AttemptState.CREATING,
        pool=event.pool,
        capacity_type=event.capacity_type,
        devices_per_node=event.devices_per_node,
        grace_seconds=event.grace_seconds,
        start_deadline=event.start_deadline,
    )
    if (reason := _why_not(event, pool)) is not None:
        code, message = reason
        refused = replace(attempt, state=AttemptState.REFUSED, failure_code=code, failure_message=message)
        return Decision(refused, (_provisioning_failed(refused),))
    assert pool is not None, "an unknown pool is a reason"
    failed = {device for failure in failures if failure.pool == pool.name for device in failure.devices}
    nodes = _leased(attempt.name, event, pool, now, failed if pool.is_local else set())
    create = Create(avoided(pool, failures, nodes=event.nodes))
    return Decision(replace(attempt, nodes=nodes, device=pool.device), actions=(create,))


def is_wanted(attempt: Attempt) -> bool:
    """Return whether its nodes are to be created. Asked right before the backend is, so no stopped attempt is."""
    return attempt.state is AttemptState.CREATING and attempt.stop_deadline is None


def on_created(
    attempt: Attempt,
    *,
    has_nodes: bool,
    now: datetime,
    is_queued: bool = False,
    waiting_for: str = "",
    public_keys: Sequence[str] = (),
    addresses: Sequence[str] = (),
) -> Decision:
    """Announce the nodes, or that they are queued, or release them after a stop.

    `has_nodes`: False if it was stopped before its turn came. `waiting_for`: what the backend says of its queue.
    `public_keys`, `addresses`: of all nodes, or none where they were started without, or the backend has none.
    """
    if attempt.state is not AttemptState.CREATING:
        return Decision(attempt)
    if public_keys:
        keyed = zip(attempt.nodes, public_keys, strict=True)
        attempt = replace(attempt, nodes=tuple(replace(node, public_key=key) for node, key in keyed))
    if attempt.stop_deadline is not None or not has_nodes:
        nodes = tuple(replace(node, allocated_at=now) for node in attempt.nodes)
        was_created = has_nodes and not is_queued
        releasing = attempt.to(AttemptState.RELEASING, was_created=was_created, nodes=nodes)
        return Decision(releasing, actions=(Release(),))
    if is_queued:
        return _wait(attempt.to(AttemptState.QUEUED), waiting_for)
    return _run(attempt, now, addresses)


def _wait(attempt: Attempt, waiting_for: str) -> Decision:
    waiting = replace(attempt, waiting_for=waiting_for)
    return Decision(waiting, (NodesQueued(**_who(waiting), pool=waiting.pool, waiting_for=waiting_for),))


def _run(attempt: Attempt, now: datetime, addresses: Sequence[str]) -> Decision:
    """Announce the nodes. They cost from now on, and the time to start counts from now on."""
    assert attempt.start_deadline is not None, "only a stop of an unknown attempt has no start deadline"
    nodes = tuple(replace(node, allocated_at=now) for node in attempt.nodes)
    reserved_at = min(node.allocated_at for node in attempt.nodes)
    wait = now - reserved_at if attempt.state is AttemptState.QUEUED else timedelta()
    deadline = attempt.start_deadline + wait
    running = attempt.to(AttemptState.RUNNING, was_created=True, nodes=nodes, start_deadline=deadline)
    event = NodesProvisioned(
        **_who(running),
        pool=running.pool,
        capacity_type=running.capacity_type,
        nodes=running.allocated_at(addresses),
        start_deadline=deadline if wait else None,
    )
    return Decision(running, (event,), wake_at=deadline + START_SLACK)


def on_create_failed(attempt: Attempt, code: str, message: str) -> Decision:
    """Remove what the backend may still hold, before the release is announced."""
    if attempt.state not in {AttemptState.CREATING, AttemptState.QUEUED}:
        return Decision(attempt)
    state = AttemptState.RELEASING if attempt.stop_deadline else AttemptState.FAILING
    failing = attempt.to(state, failure_code=code, failure_message=message)
    return Decision(failing, actions=(Release(),))


def on_job_stopping(attempt: Attempt | None, event: JobStopping, *, now: datetime) -> Decision:
    """Keep the nodes until the deadline; what holds none is answered after the backend was asked."""
    if attempt is None:
        unknown = Attempt(event.job_id, event.attempt, event.tenant, AttemptState.RELEASING)
        return Decision(replace(unknown, stop_deadline=event.deadline), actions=(Release(),))
    deadline = min(event.deadline, attempt.stop_deadline or event.deadline)
    stopping = replace(attempt, stop_deadline=deadline)
    if attempt.state in {AttemptState.REFUSED, AttemptState.QUEUED}:
        return Decision(stopping.to(AttemptState.RELEASING), actions=(Release(),))
    if attempt.state is not AttemptState.RUNNING:
        return Decision(stopping)
    return replace(on_due(stopping, now=now), wake_at=deadline)


def on_attempt_completed(attempt: Attempt) -> Decision:
    """Release the nodes: training is complete, they are not needed any more."""
    if attempt.state is not AttemptState.RUNNING:
        return Decision(attempt)
    return Decision(attempt.to(AttemptState.RELEASING), actions=(Release(FINISH_GRACE_SECONDS),))


def on_training_started(attempt: Attempt) -> Decision:
    return Decision(replace(attempt, has_started=True))


def on_due(attempt: Attempt, *, now: datetime) -> Decision:
    """Act on deadlines that have passed: that of the attempt's stop or start, or of a node's notice."""
    if attempt.state is not AttemptState.RUNNING:
        return Decision(attempt)
    if _is_over(attempt, now):
        return Decision(attempt.to(AttemptState.RELEASING), actions=(Release(),))
    ends = tuple(
        End(node.index)
        for node in attempt.nodes
        if not node.has_ended and node.notice_deadline is not None and node.notice_deadline <= now
    )
    return Decision(attempt, actions=ends)


def on_status(attempt: Attempt, status: AttemptStatus, *, now: datetime) -> Decision:
    """Follow what the backend shows: its queue, the machines, notices of its own, and which runners are gone.

    The nodes of the attempt go when the last runner is gone.
    """
    if attempt.state is AttemptState.QUEUED:
        return _on_queue(attempt, status, now)
    if attempt.state is not AttemptState.RUNNING:
        return Decision(attempt)
    members = {member.index: member for member in status.members}
    followed = replace(attempt, nodes=tuple(_on_machine(node, members) for node in attempt.nodes))
    noticed = _on_notices(followed, members, now)
    return noticed.then(_on_ends(noticed.attempt, members))


def _on_queue(attempt: Attempt, status: AttemptStatus, now: datetime) -> Decision:
    if status.refusal:
        return on_create_failed(attempt, NO_CAPACITY, status.refusal)
    if status.is_queued:
        is_news = status.has_other_reason_than(attempt.waiting_for)
        return _wait(attempt, status.waiting_for) if is_news else Decision(attempt)
    if all(member.state is MemberState.ENDED and not member.host for member in status.members):
        causes = ", ".join(sorted({str(member.cause) for member in status.members}))
        message = f"{attempt.name} ended in the backend's queue: {causes}"
        return on_create_failed(attempt, BACKEND_FAILED, message)
    begun = _run(attempt, now, status.addresses)
    return begun.then(on_status(begun.attempt, status, now=now))


def _on_machine(node: Node, members: Mapping[int, Member]) -> Node:
    member = members.get(node.index)
    return replace(node, host=member.host) if member and member.host else node


def _on_notices(attempt: Attempt, members: Mapping[int, Member], now: datetime) -> Decision:
    decision = Decision(attempt)
    for node in attempt.nodes:
        member = members.get(node.index)
        if member is None or node.has_ended:
            continue
        if member.cause is Cause.PREEMPTED and node.notice_deadline is None:
            source = member.notice_source or PREEMPTION
            decision = decision.then(_noticed(decision.attempt, node, now, source))
        elif member.notice_deadline is not None and member.notice_source:
            later = _noticed(decision.attempt, node, member.notice_deadline, member.notice_source)
            decision = decision.then(later)
    return decision


def _on_ends(attempt: Attempt, members: Mapping[int, Member]) -> Decision:
    gone = [node for node in attempt.nodes if not node.has_ended and _has_ended(members.get(node.index))]
    after = attempt
    for node in gone:
        after = after.with_node(replace(node, has_ended=True, exit_code=members[node.index].exit_code))
    is_blamed = any(member.cause is Cause.NODE_LOST for member in members.values())
    lost = tuple(
        _node_lost(attempt, node, members[node.index])
        for node in gone
        if _is_lost(node, members[node.index], is_blamed=is_blamed)
    )
    if gone and all(node.has_ended for node in after.nodes):
        return Decision(after.to(AttemptState.RELEASING), lost, (Release(),))
    return Decision(after, lost)


def on_released(attempt: Attempt, *, now: datetime) -> Decision:
    """Announce that nothing of the attempt is left at the cluster backend."""
    if attempt.state not in {AttemptState.RELEASING, AttemptState.FAILING}:
        return Decision(attempt)
    nodes = tuple(replace(node, released_at=now) for node in attempt.nodes)
    after = replace(attempt, nodes=nodes)
    if after.state is AttemptState.FAILING and after.stop_deadline is None:
        refused = after.to(AttemptState.REFUSED)
        return Decision(refused, (_provisioning_failed(refused),))
    if after.state is AttemptState.FAILING:
        after = after.to(AttemptState.RELEASING)
    held = tuple(node.allocated for node in nodes) if after.was_created else ()
    event = NodesReleased(**_who(after), nodes=held)
    return Decision(after.to(AttemptState.RELEASED), (event,))


def on_preempt(
    attempt: Attempt | None, target: str, *, notice_seconds: float, source: str, now: datetime
) -> Decision:
    """Take a node back: with notice as a cloud does, or at once, which the watch then finds as a loss.

    Raises: Refused where there is no such node to take.
    """
    attempt, node = _node_to_take(attempt, target)
    if notice_seconds == 0:
        return Decision(attempt, actions=(End(node.index),))
    return _noticed(attempt, node, now + timedelta(seconds=notice_seconds), source)


def _noticed(attempt: Attempt, node: Node, deadline: datetime, source: str) -> Decision:
    """Announce that the node goes away at the deadline, unless that is known or it goes away earlier."""
    if node.notice_deadline is not None and node.notice_deadline <= deadline:
        return Decision(attempt)
    event = NodePreempted(**_who(attempt), node_id=node.node_id, deadline=deadline, source=source)
    noticed = attempt.with_node(replace(node, notice_deadline=deadline))
    return Decision(noticed, (event,), (Notify(node.index, deadline),), wake_at=deadline)


def on_drain(
    attempt: Attempt | None, beside: Sequence[Attempt], target: str, *, grace_seconds: float, now: datetime
) -> tuple[int, list[tuple[Attempt, Decision]]]:
    """Give notice to the node and to all others of its machine; return the machine and what becomes of each attempt.

    beside: attempts that have devices of the same machine.
    Raises: Refused where there is no such node to take.
    """
    attempt, node = _node_to_take(attempt, target)
    assert node.machine is not None, f"node {node.node_id} is held on no machine"
    on_machine = [(attempt, node)] + [
        (other, each)
        for other in beside
        for each in other.nodes
        if other.state is AttemptState.RUNNING and each.machine == node.machine and not each.has_ended
    ]
    return node.machine, [
        (each, on_preempt(each, noticed.node_id, notice_seconds=grace_seconds, source="drain", now=now))
        for each, noticed in on_machine
    ]


def orphans(listed: Mapping[str, AttemptState | None]) -> list[str]:
    """Return names at the cluster backend that nobody will release: of no attempt of ours, or of one that is gone."""
    return sorted(name for name, state in listed.items() if state is None or state in GONE)


def _why_not(event: JobScheduled, pool: Pool | None) -> tuple[str, str] | None:
    if pool is None:
        return "unknown_pool", f"no pool {event.pool}"
    if event.devices_per_node > pool.devices_per_node:
        request = f"{event.devices_per_node} devices per node asked"
        return "too_many_devices", f"{request}, pool {pool.name} has {pool.devices_per_node}"
    if _machines(event, pool) is None:
        request = f"{plural(event.nodes, 'node')} of {plural(taken_per_node(event, pool), 'device')} asked"
        where = f", machines {', '.join(map(str, event.machines))}" if event.machines else ""
        left_to_jobs = pool.free_for_jobs.items()
        free = ", ".join(f"{left} on machine {machine}" for machine, left in left_to_jobs if left)
        leased = leases_in_words(lease for lease in pool.capacity.leases if lease.machine is None)
        kept = f", {leased}" if leased else ""
        return NO_CAPACITY, f"{request}{where}, pool {pool.name} has free: {free or 'none'}{kept}"
    return None


def _machines(event: JobScheduled, pool: Pool) -> tuple[int, ...] | None:
    """Return the machines that the scheduler named, or else those of the best fit; None where they have no room."""
    free = pool.free_for_jobs
    if event.machines:
        free = {machine: left for machine, left in free.items() if machine in event.machines}
    return best_fit(free, nodes=event.nodes, devices=taken_per_node(event, pool))


def _leased(
    name: str, event: JobScheduled, pool: Pool, now: datetime, failed: Collection[int]
) -> tuple[Node, ...]:
    """Return the nodes with their devices, the lowest free numbers of their machines, but those that failed last."""
    machines, devices = _machines(event, pool), taken_per_node(event, pool)
    assert machines is not None, "too little room is a reason"
    return tuple(
        Node(
            node_id(name, index),
            index,
            pool.price_per_device_hour * devices,
            allocated_at=now,
            machine=machine,
            devices=tuple(
                sorted(sorted(pool.free_on(machine), key=lambda number: number in failed)[:devices])
            ),
        )
        for index, machine in enumerate(machines)
    )


def _is_over(attempt: Attempt, now: datetime) -> bool:
    if attempt.stop_deadline is not None:
        return attempt.stop_deadline <= now
    assert attempt.start_deadline is not None, "only a stop of an unknown attempt has no start deadline"
    return not attempt.has_started and attempt.start_deadline + START_SLACK <= now


def _has_ended(member: Member | None) -> bool:
    """Of a member that the backend does not know any more nothing is concluded: its heartbeats decide."""
    return member is not None and member.state is MemberState.ENDED and member.cause is not Cause.UNKNOWN


def _is_lost(node: Node, member: Member, *, is_blamed: bool) -> bool:
    """Return whether the node counts as lost. One that was preempted is not lost as well, nor is one that the
    backend ended because of another one that is (`is_blamed`).
    """
    if member.exit_code in CLEAN_EXITS or node.notice_deadline is not None:
        return False
    return not (member.cause is Cause.CANCELLED and is_blamed)


def _node_lost(attempt: Attempt, node: Node, member: Member) -> NodeLost:
    how = (
        HOW.get(member.cause, "vanished")
        if member.exit_code is None
        else f"exited with code {member.exit_code}"
    )
    message = f"the runner of node {node.node_id} {how}, expected 0 or 143"
    kind = FailureClass.PLATFORM if member.exit_code == EXIT_FENCED else FailureClass.INFRA
    return NodeLost(
        **_who(attempt), node_id=node.node_id, message=message, failure_class=kind, host=node.host
    )


def _node_to_take(attempt: Attempt | None, target: str) -> tuple[Attempt, Node]:
    if attempt is None:
        raise Refused("unknown_node", f"no node {target} is known", param="node_id")
    alive = [node for node in attempt.nodes if not node.has_ended and target in {node.node_id, _job(attempt)}]
    if attempt.state is not AttemptState.RUNNING or not alive:
        attempt_state = f"attempt {attempt.name} is {attempt.state}"
        raise Refused("not_running", f"no runner to take at {target}: {attempt_state}", param="node_id")
    return attempt, alive[0]


def _job(attempt: Attempt) -> str:
    return f"job:{attempt.job_id}"


def _provisioning_failed(attempt: Attempt) -> ProvisioningFailed:
    return ProvisioningFailed(
        **_who(attempt),
        pool=attempt.pool,
        code=attempt.failure_code,
        message=attempt.failure_message,
    )


def _who(attempt: Attempt) -> dict[str, Any]:
    return {"job_id": attempt.job_id, "tenant": attempt.tenant, "attempt": attempt.number}
