"""Pure decisions about capacity and nodes.

Nothing is created, signalled or removed here: an action names what a task then does at the cluster backend, outside
any transaction, and the task's end comes back as the next decision.
"""

from collections.abc import Mapping, Sequence
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
    NodesReleased,
    ProvisioningFailed,
)
from schemas.placement import best_fit, taken_per_node
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

FINISH_GRACE_SECONDS = 5.0
"""Given to runners of a completed attempt to write the end of their log."""


@dataclass(frozen=True)
class Create:
    """Ask the backend for all nodes of the attempt."""


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
class Exit:
    """How a node's runner ended; `code` is None where nobody knows."""

    code: int | None


@dataclass(frozen=True)
class Decision:
    attempt: Attempt
    events: tuple[Message, ...] = ()
    actions: tuple[Action, ...] = ()
    wake_at: datetime | None = None
    """When to look at the attempt's deadlines; None: no new time."""


def on_job_scheduled(event: JobScheduled, pool: Pool | None, *, now: datetime) -> Decision:
    """Lease devices for the whole gang or nothing."""
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
    nodes = _leased(attempt.name, event, pool, now)
    return Decision(replace(attempt, nodes=nodes, device=pool.device), actions=(Create(),))


def is_wanted(attempt: Attempt) -> bool:
    """Return whether its nodes are to be created. Asked right before the backend is, so no stopped attempt is."""
    return attempt.state is AttemptState.CREATING and attempt.stop_deadline is None


def on_created(attempt: Attempt, *, has_nodes: bool, now: datetime) -> Decision:
    """Announce the nodes, or release them after a stop. `has_nodes`: False if it was stopped before its turn came."""
    if attempt.state is not AttemptState.CREATING:
        return Decision(attempt)
    nodes = tuple(replace(node, allocated_at=now) for node in attempt.nodes)
    if attempt.stop_deadline is not None or not has_nodes:
        releasing = attempt.to(AttemptState.RELEASING, was_created=has_nodes, nodes=nodes)
        return Decision(releasing, actions=(Release(),))
    running = attempt.to(AttemptState.RUNNING, was_created=True, nodes=nodes)
    event = NodesProvisioned(
        **_who(running),
        pool=running.pool,
        capacity_type=running.capacity_type,
        nodes=tuple(node.allocated for node in nodes),
    )
    assert running.start_deadline is not None, "only a stop of an unknown attempt has no start deadline"
    return Decision(running, (event,), wake_at=running.start_deadline + START_SLACK)


def on_create_failed(attempt: Attempt, code: str, message: str) -> Decision:
    """Remove what the backend may still hold, before the release is announced."""
    if attempt.state is not AttemptState.CREATING:
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
    if attempt.state is AttemptState.REFUSED:
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


def on_exits(attempt: Attempt, exits: Mapping[int, Exit]) -> Decision:
    """Note which runners are gone. The nodes of the attempt go when the last one is."""
    if attempt.state is not AttemptState.RUNNING:
        return Decision(attempt)
    gone = [node for node in attempt.nodes if not node.has_ended and node.index in exits]
    after = attempt
    for node in gone:
        after = after.with_node(replace(node, has_ended=True, exit_code=exits[node.index].code))
    lost = tuple(
        _node_lost(attempt, node, exits[node.index]) for node in gone if _is_lost(node, exits[node.index])
    )
    if all(node.has_ended for node in after.nodes):
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
    deadline = now + timedelta(seconds=notice_seconds)
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


def on_pools_read(known: Mapping[str, Pool], file: Mapping[str, Pool]) -> list[Pool]:
    """Return the pools as they are to be from now on. One that left the file gives no more nodes."""
    kept = [_as_in_file(known.get(name), pool) for name, pool in file.items()]
    gone = [
        replace(pool, nodes=0, file_nodes=0, drained=(), is_removed=True)
        for name, pool in known.items()
        if name not in file
    ]
    return kept + gone


def on_drained(pool: Pool, machine: int) -> Pool:
    """Return the pool without the machine, until its capacity is set again."""
    if machine in pool.drained:
        return pool
    nodes = pool.nodes - (machine in pool.free)
    return replace(pool, nodes=nodes, drained=tuple(sorted((*pool.drained, machine))))


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
        request = f"{event.nodes} node(s) of {taken_per_node(event, pool)} device(s) asked"
        where = f" on machine(s) {', '.join(map(str, event.machines))}" if event.machines else ""
        free = ", ".join(f"{left} on machine {machine}" for machine, left in pool.free.items() if left)
        return "no_capacity", f"{request}{where}, pool {pool.name} has free: {free or 'none'}"
    return None


def _machines(event: JobScheduled, pool: Pool) -> tuple[int, ...] | None:
    """Return the machines that the scheduler named, or else those of the best fit; None where they have no room."""
    free = pool.free
    if event.machines:
        free = {machine: left for machine, left in free.items() if machine in event.machines}
    return best_fit(free, nodes=event.nodes, devices=taken_per_node(event, pool))


def _leased(name: str, event: JobScheduled, pool: Pool, now: datetime) -> tuple[Node, ...]:
    """Return the nodes with their devices, the lowest free numbers of their machines."""
    machines, devices = _machines(event, pool), taken_per_node(event, pool)
    assert machines is not None, "too little room is a reason"
    return tuple(
        Node(
            node_id(name, index),
            index,
            pool.price_per_device_hour * devices,
            allocated_at=now,
            machine=machine,
            devices=tuple(pool.free_on(machine)[:devices]),
        )
        for index, machine in enumerate(machines)
    )


def _is_over(attempt: Attempt, now: datetime) -> bool:
    if attempt.stop_deadline is not None:
        return attempt.stop_deadline <= now
    assert attempt.start_deadline is not None, "only a stop of an unknown attempt has no start deadline"
    return not attempt.has_started and attempt.start_deadline + START_SLACK <= now


def _is_lost(node: Node, runner_exit: Exit) -> bool:
    """Return whether the node counts as lost. One that was preempted is not lost as well."""
    return runner_exit.code not in CLEAN_EXITS and node.notice_deadline is None


def _node_lost(attempt: Attempt, node: Node, runner_exit: Exit) -> NodeLost:
    how = "vanished" if runner_exit.code is None else f"exited with code {runner_exit.code}"
    message = f"the runner of node {node.node_id} {how}, expected 0 or 143"
    kind = FailureClass.PLATFORM if runner_exit.code == EXIT_FENCED else FailureClass.INFRA
    return NodeLost(**_who(attempt), node_id=node.node_id, message=message, failure_class=kind)


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


def _as_in_file(known: Pool | None, pool: Pool) -> Pool:
    if known is None:
        return pool
    if pool.file_nodes != known.file_nodes:
        return replace(pool, leased=known.leased)
    return replace(pool, nodes=known.nodes, drained=known.drained, leased=known.leased)


def _provisioning_failed(attempt: Attempt) -> ProvisioningFailed:
    return ProvisioningFailed(
        **_who(attempt),
        pool=attempt.pool,
        code=attempt.failure_code,
        message=attempt.failure_message,
    )


def _who(attempt: Attempt) -> dict[str, Any]:
    return {"job_id": attempt.job_id, "tenant": attempt.tenant, "attempt": attempt.number}
