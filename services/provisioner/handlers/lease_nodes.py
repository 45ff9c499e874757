"""The nodes of leases at the cluster backends: started and stopped outside any transaction, and what they show."""

from dataclasses import dataclass

from services.provisioner import lease_nodes, leases, store
from services.provisioner.backends.dispatch import Backends
from services.provisioner.backends.protocol import (
    AttemptSpec,
    AttemptStatus,
    NoCapacity,
    SpecConflict,
)
from services.provisioner.handlers.cluster import command_of
from services.provisioner.handlers.leases import (
    LeaseTask,
    StartLeaseNode,
    StopLeaseNode,
    announce,
    lock,
    pool_of,
    save,
)
from services.provisioner.handlers.machines import record_of_lease
from services.provisioner.lease_nodes import Followed
from services.provisioner.model import PROGRAMS, Lease, LeaseState
from services.provisioner.node_keys import NodeKeys
from shared.errors import Rejected
from shared.failpoints import failpoint
from shared.log import get_logger
from shared.messaging.unit import Unit
from shared.service import Service

log = get_logger(__name__)

GRACE_SECONDS = 120.0
"""Time that the backend is asked to leave between its notice and the node's end: for another node to take over."""


@dataclass(frozen=True)
class LeaseNodes:
    service: Service
    backends: Backends
    node_keys: NodeKeys

    async def start(self, task: StartLeaseNode) -> AttemptStatus | None:
        """Start the node unless its lease is over."""
        async with self.service.unit() as unit:
            lease = await store.find_lease(unit.conn, task.lease_id)
        backend = self.backends.of(task.pool)
        if lease is not None and lease_nodes.is_wanted(lease):
            failpoint("provider.create.before")
            try:
                await backend.start(_spec(task))
            except (SpecConflict, NoCapacity) as refusal:
                raise Rejected(str(refusal)) from refusal
            failpoint("provider.create.after")
        return await backend.inspect(task.name)

    async def started(self, task: StartLeaseNode, status: AttemptStatus | None, unit: Unit) -> None:
        lease = await _get(unit, task)
        key = self.node_keys.public(task.name, 0)
        pool = await pool_of(unit, lease)
        await _apply(unit, lease, lease_nodes.on_started(lease, pool, status, public_key=key))

    async def start_failed(self, task: StartLeaseNode, error: Exception, unit: Unit) -> None:
        lease = await _get(unit, task)
        log.warning("node of a lease not started", lease_id=task.lease_id, name=task.name, error=str(error))
        await _apply(unit, lease, lease_nodes.on_failed(lease, str(error)))

    async def stop(self, task: StopLeaseNode) -> AttemptStatus | None:
        """Remove the node. Who computed there has ended, or has no lease any more: it is given no time.

        Return how it ended.
        """
        backend = self.backends.of(task.pool)
        await backend.stop(task.name, 0.0)
        status = await backend.inspect(task.name)
        await backend.forget(task.name)
        failpoint("provider.delete.after")
        return status

    async def stopped(self, task: StopLeaseNode, result: AttemptStatus | None, unit: Unit) -> None:
        """Give its devices to who waits for them. Its holder may have missed a machine before the backend did."""
        lease = await _get(unit, task)
        if lease.state is not LeaseState.ENDED:
            if result and any(member.has_lost_machine for member in result.members):
                await record_of_lease(unit, lease, result, f"machine of node {task.name}-n0 was lost")
            await store.save_lease(unit.conn, leases.on_released(lease))
            await announce(unit, await pool_of(unit, lease))

    async def again(self, task: LeaseTask, error: Exception, unit: Unit) -> None:
        """Ask the backend again: what is asked for must happen in the end, or nodes leak."""
        log.error("backend does not answer", task=type(task).__name__, name=task.name, error=str(error))
        await unit.start_task(task)


async def observed(unit: Unit, status: AttemptStatus) -> bool:
    """Take in what a backend shows under a name that no attempt has; return whether its lease was ready for it."""
    known = await store.find_lease_of_node(unit.conn, status.name)
    lease = known and await lock(unit, known.lease_id)
    if lease is None or lease_nodes.is_wanted(lease):
        return False
    pool = await pool_of(unit, lease)
    followed = lease_nodes.on_status(lease, pool, status)
    await _apply(unit, lease, followed)
    if followed.lease.has_ended and not lease.has_ended:
        await record_of_lease(unit, lease, status, followed.lease.end_message)
    return True


async def _apply(unit: Unit, before: Lease, followed: Followed) -> None:
    if followed.lease != before:
        await save(unit, await pool_of(unit, before), followed.lease, *followed.events, before=before)


async def _get(unit: Unit, task: LeaseTask) -> Lease:
    lease = await lock(unit, task.lease_id)
    assert lease is not None, "a task is started in the transaction that saves its lease"
    return lease


def _spec(task: StartLeaseNode) -> AttemptSpec:
    program = PROGRAMS[task.purpose]
    argv, env = command_of(program.module)
    return AttemptSpec(
        name=task.name,
        pool=task.pool,
        nodes=1,
        devices_per_node=task.num_devices,
        devices=(task.devices,),
        device=task.device,
        argv=argv,
        env=env,
        grace_seconds=GRACE_SECONDS,
        excluded=task.excluded,
        lease_id=task.lease_id,
        variables=program.variables,
    )
