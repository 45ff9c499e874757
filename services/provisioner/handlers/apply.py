"""A decision becomes rows, events, tasks and timers, in one transaction."""

from datetime import datetime

from pydantic import BaseModel

from schemas.base import DeviceKind
from services.provisioner import store
from services.provisioner.decide import Action, Create, Decision, End, Notify, Release
from services.provisioner.model import Attempt
from shared.messaging.unit import Task, Unit


class Due(BaseModel):
    """Timer: some deadline of the attempt may have passed."""

    job_id: str
    number: int


class BackendTask(Task):
    """Something to do at the cluster backend, where the attempt has this name."""

    job_id: str
    number: int
    name: str

    @property
    def key(self) -> str:
        return self.name


class CreateNodes(BackendTask):
    tenant: str
    pool: str
    nodes: int
    devices_per_node: int
    devices: tuple[tuple[int, ...], ...] = ()
    """Numbers of the devices of each node; none of tasks that are older than leases."""
    device: DeviceKind | None = None
    grace_seconds: float
    start_deadline: datetime


class ReleaseNodes(BackendTask):
    grace_seconds: float


class NotifyNode(BackendTask):
    index: int
    deadline: datetime

    @property
    def key(self) -> str:
        return f"{self.name}:{self.index}:{self.deadline.isoformat()}"


class EndNode(BackendTask):
    index: int

    @property
    def key(self) -> str:
        return f"{self.name}:{self.index}"


async def apply(unit: Unit, before: Attempt | None, decision: Decision) -> None:
    after = decision.attempt
    await store.save_attempt(unit.conn, before, after)
    await unit.emit(*decision.events)
    if after.held != (before.held if before else 0):
        pool = await store.lock_pool(unit.conn, after.pool)
        assert pool is not None, "a held node has a pool"
        await unit.emit(pool.capacity)
    for action in decision.actions:
        await unit.start_task(_task(after, action))
    if decision.wake_at is not None:
        await unit.set_timer(Due(job_id=after.job_id, number=after.number), at=decision.wake_at)


def _task(attempt: Attempt, action: Action) -> BackendTask:
    job_id, number, name = attempt.job_id, attempt.number, attempt.name
    match action:
        case Create():
            return _creation(attempt)
        case Release(grace_seconds):
            return ReleaseNodes(job_id=job_id, number=number, name=name, grace_seconds=grace_seconds)
        case Notify(index, deadline):
            return NotifyNode(job_id=job_id, number=number, name=name, index=index, deadline=deadline)
        case End(index):
            return EndNode(job_id=job_id, number=number, name=name, index=index)


def _creation(attempt: Attempt) -> CreateNodes:
    assert attempt.start_deadline is not None, "only a stop of an unknown attempt has no start deadline"
    return CreateNodes(
        job_id=attempt.job_id,
        number=attempt.number,
        name=attempt.name,
        tenant=attempt.tenant,
        pool=attempt.pool,
        nodes=len(attempt.nodes),
        devices_per_node=attempt.devices_per_node,
        devices=tuple(node.devices for node in attempt.nodes),
        device=attempt.device,
        grace_seconds=attempt.grace_seconds,
        start_deadline=attempt.start_deadline,
    )
