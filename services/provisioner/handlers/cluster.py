"""What is done at the cluster backends, outside any transaction, and what they show."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from services.provisioner import decide, store
from services.provisioner.backends.dispatch import Backends
from services.provisioner.backends.protocol import (
    AttemptSpec,
    AttemptStatus,
    Backend,
    BackendFailed,
    NoCapacity,
    SpecConflict,
)
from services.provisioner.handlers.apply import (
    AttemptTask,
    CreateNodes,
    EndNode,
    NotifyNode,
    ReleaseNodes,
    apply,
)
from services.provisioner.handlers.machines import record_unnoticed
from services.provisioner.model import Attempt, AttemptState
from services.provisioner.node_keys import NodeKeys
from shared.errors import Rejected
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.loops import repeat
from shared.messaging.unit import Unit
from shared.service import Service

log = get_logger(__name__)

RUNNER = "services.trainer_agent.runner"
REPOSITORY = Path(__file__).parents[3]

FOLLOW_AGAIN = timedelta(seconds=1)
KNOWN_AT_MOST = 10_000
"""Statuses that are kept to be compared with what comes next."""


class Full(Rejected):
    """The backend has no room for the attempt for now."""


@dataclass(frozen=True)
class Created:
    """What the backend has of an attempt after it was asked to start it."""

    has_nodes: bool
    is_queued: bool = False
    waiting_for: str = ""
    public_keys: tuple[str, ...] = ()
    """Of all nodes; none where they were started without."""
    addresses: tuple[str, ...] = ()
    """Of all nodes; none where the backend does not know them."""


@dataclass(frozen=True)
class Cluster:
    service: Service
    backends: Backends
    node_keys: NodeKeys
    observe_other: Callable[[Unit, AttemptStatus], Awaitable[bool]]
    """Takes in what a backend shows under a name that no attempt has."""

    async def create(self, task: CreateNodes) -> Created:
        """Create the nodes unless the attempt was stopped."""
        async with self.service.unit() as unit:
            attempt, now = await _get(unit, task), unit.now
        backend = self.backends.of(task.pool)
        if not decide.is_wanted(attempt):
            return self._created(task, await backend.inspect(task.name))
        if now > task.start_deadline:
            raise Rejected(f"{task.name} was not created by its start deadline {task.start_deadline}")
        failpoint("provider.create.before")
        try:
            await backend.start(_spec(task))
        except SpecConflict as conflict:
            raise Rejected(str(conflict)) from conflict
        except NoCapacity as refusal:
            raise Full(str(refusal)) from refusal
        failpoint("provider.create.after")
        return self._created(task, await backend.inspect(task.name))

    def _created(self, task: CreateNodes, status: AttemptStatus | None) -> Created:
        if status is None:
            return Created(has_nodes=False)
        given = range(task.nodes) if status.has_keys else ()
        keys = tuple(self.node_keys.public(task.name, index) for index in given)
        return Created(
            has_nodes=True,
            is_queued=status.is_queued,
            waiting_for=status.waiting_for,
            public_keys=keys,
            addresses=status.addresses,
        )

    async def created(self, task: CreateNodes, result: Created, unit: Unit) -> None:
        attempt = await _get(unit, task)
        decision = decide.on_created(
            attempt,
            has_nodes=result.has_nodes,
            is_queued=result.is_queued,
            waiting_for=result.waiting_for,
            public_keys=result.public_keys,
            addresses=result.addresses,
            now=unit.now,
        )
        await apply(unit, attempt, decision)

    async def create_failed(self, task: CreateNodes, error: Exception, unit: Unit) -> None:
        attempt = await _get(unit, task)
        await apply(unit, attempt, decide.on_create_failed(attempt, _code(error), str(error)))

    async def release(self, task: ReleaseNodes) -> AttemptStatus | None:
        """Remove the attempt, from all backends where nobody knows which has it. Return how it ended."""
        status = None
        for backend in [self.backends.of(task.pool)] if task.pool else self.backends.all():
            await backend.stop(task.name, task.grace_seconds)
            status = await backend.inspect(task.name) or status
            await backend.forget(task.name)
        failpoint("provider.delete.after")
        return status

    async def released(self, task: ReleaseNodes, result: AttemptStatus | None, unit: Unit) -> None:
        attempt = await _get(unit, task)
        await record_unnoticed(unit, attempt, result)
        await apply(unit, attempt, decide.on_released(attempt, now=unit.now))

    async def notify(self, task: NotifyNode) -> None:
        await self.backends.of(task.pool).notify(task.name, task.index, task.deadline)

    async def end(self, task: EndNode) -> None:
        await self.backends.of(task.pool).end(task.name, task.index)

    async def again(self, task: AttemptTask, error: Exception, unit: Unit) -> None:
        """Ask the backend again: what is asked for must happen in the end, or nodes leak."""
        log.error("backend does not answer", task=type(task).__name__, name=task.name, error=str(error))
        await unit.start_task(task)

    async def follow(self) -> None:
        """Watch the backends, each by itself: one that does not answer keeps nobody from hearing of the others.

        Ends when that of this machine fails; the next call begins with all that is there.
        """
        local, *others = self.backends.all()
        loops = [asyncio.create_task(repeat(FOLLOW_AGAIN, partial(self._follow, each))) for each in others]
        try:
            await self._follow(local)
        finally:
            for loop in loops:
                loop.cancel()

    async def _follow(self, backend: Backend) -> None:
        """Take each status in once. One that came before its attempt was ready for it comes again."""
        known: dict[str, AttemptStatus] = {}
        try:
            async for status in backend.watch():
                if known.get(status.name) != status and await self._observed(status):
                    known[status.name] = status
                if len(known) > KNOWN_AT_MOST:
                    known.clear()
        except BackendFailed as failure:
            log.warning("backend does not answer", error=str(failure))

    async def sweep(self) -> None:
        for backend in self.backends.all():
            try:
                await self._sweep(backend)
            except BackendFailed as failure:
                log.warning("backend does not answer", error=str(failure))

    async def _sweep(self, backend: Backend) -> None:
        """End what nobody will release. The backend is asked first: a row is older than its nodes."""
        names = [status.name for status in await backend.list_owned()]
        async with self.service.unit() as unit:
            of_leases = await store.leased_names(unit.conn, names)
            orphans = decide.orphans(await store.states_of(unit.conn, set(names) - of_leases))
        for name in orphans:
            log.warning("orphan removed", name=name)
            await backend.stop(name, 0.0)
            await backend.forget(name)

    async def _observed(self, status: AttemptStatus) -> bool:
        """Return whether the attempt was ready to take it in."""
        async with self.service.unit() as unit:
            attempt = await store.lock_attempt_named(unit.conn, status.name)
            if attempt is None:
                return await self.observe_other(unit, status)
            if attempt.state is AttemptState.CREATING:
                return False
            await apply(unit, attempt, decide.on_status(attempt, status, now=unit.now))
            return True


async def nothing(task: AttemptTask, result: None, unit: Unit) -> None:
    """Do nothing: the watch sees what comes of it."""


def _code(error: Exception) -> str:
    if isinstance(error, Full):
        return decide.NO_CAPACITY
    return "refused" if isinstance(error, Rejected) else decide.BACKEND_FAILED


def command_of(module: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the command that runs a module on a node, and its environment."""
    # A node's folder is its working directory, so the repository has to be named.
    return (sys.executable, "-m", module), (("PYTHONPATH", str(REPOSITORY)),)


def _spec(task: CreateNodes) -> AttemptSpec:
    argv, env = command_of(RUNNER)
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
        excluded=task.excluded,
        argv=argv,
        env=env,
        grace_seconds=task.grace_seconds,
    )


async def _get(unit: Unit, task: AttemptTask) -> Attempt:
    attempt = await store.lock_attempt(unit.conn, task.job_id, task.number)
    assert attempt is not None, "a task is started in the transaction that saves its attempt"
    return attempt
