"""What is done at the cluster backend, outside any transaction, and what the backend shows."""

import sys
from dataclasses import dataclass
from pathlib import Path

from services.provisioner import decide, store
from services.provisioner.backends.protocol import (
    AttemptSpec,
    AttemptStatus,
    Backend,
    MemberState,
    SpecConflict,
)
from services.provisioner.decide import Exit
from services.provisioner.handlers.apply import (
    BackendTask,
    CreateNodes,
    EndNode,
    NotifyNode,
    ReleaseNodes,
    apply,
)
from services.provisioner.model import Attempt
from shared.errors import Rejected
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.unit import Unit
from shared.service import Service

log = get_logger(__name__)

RUNNER = (sys.executable, "-m", "services.trainer_agent.runner")
REPOSITORY = Path(__file__).parents[3]


@dataclass(frozen=True)
class Cluster:
    service: Service
    backend: Backend

    async def create(self, task: CreateNodes) -> bool:
        """Create the nodes unless the attempt was stopped; return whether the backend has nodes of it."""
        async with self.service.unit() as unit:
            attempt, now = await _get(unit, task), unit.now
        if not decide.is_wanted(attempt):
            return await self.backend.inspect(task.name) is not None
        if now > task.start_deadline:
            raise Rejected(f"{task.name} was not created by its start deadline {task.start_deadline}")
        failpoint("provider.create.before")
        try:
            await self.backend.start(_spec(task))
        except SpecConflict as conflict:
            raise Rejected(str(conflict)) from conflict
        failpoint("provider.create.after")
        return True

    async def created(self, task: CreateNodes, result: bool, unit: Unit) -> None:
        attempt = await _get(unit, task)
        await apply(unit, attempt, decide.on_created(attempt, has_nodes=result, now=unit.now))

    async def create_failed(self, task: CreateNodes, error: Exception, unit: Unit) -> None:
        attempt = await _get(unit, task)
        code = "refused" if isinstance(error, Rejected) else "backend_failed"
        await apply(unit, attempt, decide.on_create_failed(attempt, code, str(error)))

    async def release(self, task: ReleaseNodes) -> None:
        await self.backend.stop(task.name, task.grace_seconds)
        await self.backend.forget(task.name)
        failpoint("provider.delete.after")

    async def released(self, task: ReleaseNodes, result: None, unit: Unit) -> None:
        attempt = await _get(unit, task)
        await apply(unit, attempt, decide.on_released(attempt, now=unit.now))

    async def notify(self, task: NotifyNode) -> None:
        await self.backend.notify(task.name, task.index, task.deadline)

    async def end(self, task: EndNode) -> None:
        await self.backend.end(task.name, task.index)

    async def again(self, task: BackendTask, error: Exception, unit: Unit) -> None:
        """Ask the backend again: what is asked for must happen in the end, or nodes leak."""
        log.error("backend does not answer", task=type(task).__name__, name=task.name, error=str(error))
        await unit.start_task(task)

    async def follow(self) -> None:
        """Watch the backend. Ends only by an error; the next call begins with all that is there."""
        async for status in self.backend.watch():
            await self._observed(status)

    async def sweep(self) -> None:
        """End what nobody will release. The backend is asked first: a row is older than its nodes."""
        names = [status.name for status in await self.backend.list_owned()]
        async with self.service.unit() as unit:
            orphans = decide.orphans(await store.states_of(unit.conn, names))
        for name in orphans:
            log.warning("orphan removed", name=name)
            await self.backend.stop(name, 0.0)
            await self.backend.forget(name)

    async def _observed(self, status: AttemptStatus) -> None:
        exits = {
            member.index: Exit(member.exit_code)
            for member in status.members
            if member.state is MemberState.ENDED
        }
        if not exits:
            return
        async with self.service.unit() as unit:
            attempt = await store.lock_attempt_named(unit.conn, status.name)
            if attempt is not None:
                await apply(unit, attempt, decide.on_exits(attempt, exits))


async def nothing(task: BackendTask, result: None, unit: Unit) -> None:
    """Do nothing: the watch sees what comes of it."""


def _spec(task: CreateNodes) -> AttemptSpec:
    return AttemptSpec(
        name=task.name,
        job_id=task.job_id,
        tenant=task.tenant,
        attempt=task.number,
        pool=task.pool,
        nodes=task.nodes,
        devices_per_node=task.devices_per_node,
        devices=task.devices,
        device=task.device,
        argv=RUNNER,
        # A node's folder is its working directory, so the repository has to be named.
        env=(("PYTHONPATH", str(REPOSITORY)),),
        grace_seconds=task.grace_seconds,
    )


async def _get(unit: Unit, task: BackendTask) -> Attempt:
    attempt = await store.lock_attempt(unit.conn, task.job_id, task.number)
    assert attempt is not None, "a task is started in the transaction that saves its attempt"
    return attempt
