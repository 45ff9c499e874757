"""A decision becomes rows, events, tasks and timers, in one transaction."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from schemas.base import DeviceKind
from schemas.node import NodeLost
from services.provisioner import store
from services.provisioner.decide import Action, Create, Decision, End, Notify, Release
from services.provisioner.handlers import machines
from services.provisioner.handlers.leases import announce
from services.provisioner.handlers.tasks import BackendTask
from services.provisioner.model import Attempt
from shared.messaging.unit import Unit


class Due(BaseModel):
    """Timer: some deadline of the attempt may have passed."""

    job_id: str
    number: int


class AttemptTask(BackendTask):
    """Something to do with the nodes of an attempt."""

    job_id: str
    number: int


class CreateNodes(AttemptTask):
    tenant: str
    nodes: int
    devices_per_node: int
    devices: tuple[tuple[int, ...], ...] = ()
    """Numbers of the devices of each node; none of tasks that are older than leases."""
    device: DeviceKind | None = None
    excluded: tuple[str, ...] = ()
    """Machines that it must not run on, by the names that the backend gives them."""
    grace_seconds: float
    start_deadline: datetime


class ReleaseNodes(AttemptTask):
    grace_seconds: float


class NotifyNode(AttemptTask):
    index: int
    deadline: datetime

    @property
    def key(self) -> str:
        return f"{self.name}:{self.index}:{self.deadline.isoformat()}"


class EndNode(AttemptTask):
    index: int

    @property
    def key(self) -> str:
        return f"{self.name}:{self.index}"


async def apply(unit: Unit, before: Attempt | None, decision: Decision) -> None:
    after = decision.attempt if before else replace(decision.attempt, origin=unit.origin)
    await store.save_attempt(unit.conn, before, after)
    await unit.emit(*decision.events, origin=after.origin if unit.envelope is None else None)
    for lost in decision.events:
        if isinstance(lost, NodeLost):
            await machines.record(unit, after, lost)
    if after.held != (before.held if before else 0):
        pool = await store.lock_pool(unit.conn, after.pool)
        assert pool is not None, "a held node has a pool"
        await announce(unit, pool)
    for action in decision.actions:
        await unit.start_task(_task(after, action))
    if decision.wake_at is not None:
        await unit.set_timer(Due(job_id=after.job_id, number=after.number), at=decision.wake_at)


def _task(attempt: Attempt, action: Action) -> AttemptTask:
    where = _where(attempt)
    match action:
        case Create(excluded):
            return _creation(attempt, excluded)
        case Release(grace_seconds):
            return ReleaseNodes(**where, grace_seconds=grace_seconds)
        case Notify(index, deadline):
            return NotifyNode(**where, index=index, deadline=deadline)
        case End(index):
            return EndNode(**where, index=index)


def _creation(attempt: Attempt, excluded: tuple[str, ...]) -> CreateNodes:
    assert attempt.start_deadline is not None, "only a stop of an unknown attempt has no start deadline"
    return CreateNodes(
        **_where(attempt),
        tenant=attempt.tenant,
        nodes=len(attempt.nodes),
        devices_per_node=attempt.devices_per_node,
        devices=tuple(node.devices for node in attempt.nodes),
        device=attempt.device,
        excluded=excluded,
        grace_seconds=attempt.grace_seconds,
        start_deadline=attempt.start_deadline,
    )


def _where(attempt: Attempt) -> dict[str, Any]:
    return {
        "job_id": attempt.job_id,
        "number": attempt.number,
        "name": attempt.name,
        # What never had a node may be at any backend, as far as anybody knows.
        "pool": attempt.pool if attempt.nodes else "",
    }
